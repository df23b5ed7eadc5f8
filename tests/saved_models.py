"""Tiny seeded models of many architectures and the checkpoints that they save, made once a process."""

import atexit
import copy
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import models

TOKENS, ATTENTION = models._TOKENS, models._ATTENTION
SMALL = dict(**TOKENS, **ATTENTION, num_hidden_layers=3)


class Convolutions(nn.Module):
    """Batch norms, buffers saved and not saved, and no configuration."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.body = nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)) for _ in range(3)))
        self.head = nn.Linear(8, 5)
        self.register_buffer("scale", torch.linspace(0, 1, 8))
        self.register_buffer("table", torch.arange(6.0), persistent=False)


def _whisper():
    layers = dict(encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)
    sizes = dict(d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=16)
    lengths = dict(max_source_positions=32, max_target_positions=32, decoder_start_token_id=1)
    config = transformers.WhisperConfig(**TOKENS, **layers, **sizes, **lengths)
    return transformers.WhisperForConditionalGeneration(config)


def _deepseek():
    experts = dict(moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1)
    lora = dict(q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8)
    config = transformers.DeepseekV3Config(
        **{**SMALL, "num_key_value_heads": 4}, **experts, **lora, n_group=2, topk_group=1
    )
    return transformers.DeepseekV3ForCausalLM(config)


def _qwen3_moe():
    experts = dict(moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, head_dim=8)
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SMALL, **experts))


def _opt():
    sizes = dict(hidden_size=32, ffn_dim=64, num_hidden_layers=3, num_attention_heads=4, word_embed_proj_dim=32)
    return transformers.OPTForCausalLM(transformers.OPTConfig(**TOKENS, **sizes, max_position_embeddings=128))


def _bert():
    sizes = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64)
    return transformers.BertModel(transformers.BertConfig(vocab_size=128, **sizes, max_position_embeddings=64))


def _t5():
    sizes = dict(vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))


def _tied():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL, head_dim=8, tie_word_embeddings=True))


_BUILD = {
    "bert": _bert,
    "convolutions": Convolutions,
    "deepseek": _deepseek,
    "gemma3": lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**SMALL, head_dim=8)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**SMALL, head_dim=8)),
    "opt": _opt,
    "phi3": lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**SMALL)),
    "qwen3_moe": _qwen3_moe,
    "t5": _t5,
    "tied": _tied,
    "whisper": _whisper,
}
KINDS = ("encoder", "gpt2", "llama", "mamba", "minimax_m2", "mixtral", "qwen3", "vit", *_BUILD)


@cache
def _saved(kind):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = (_BUILD[kind]() if kind in _BUILD else getattr(models, kind)()[0]).eval()
        for value in (*model.parameters(), *model.buffers()):
            if value.is_floating_point() and value.ndim == 1 and value.unique().numel() == 1:
                value.data += 0.1 * torch.rand_like(value)  # as if trained: norms are not all ones
    folder = Path(mkdtemp(prefix="layertap-weights-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
    else:
        save_file(state(model), folder / "model.safetensors")
    return model, folder


def saved(kind):
    """(A fresh copy of the model, the folder of its checkpoint)."""
    model, folder = _saved(kind)
    return copy.deepcopy(model), folder


def state(model):
    return {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}


def tensors(folder):
    return load_file(folder / "model.safetensors")
