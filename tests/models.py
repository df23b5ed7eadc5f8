"""Small seeded models of many kinds, built from configurations: nothing is downloaded.

Each function returns the model in eval mode, float32 on the CPU, and inputs: a dict of keywords or a tuple. The same
seed gives the same weights and inputs in every process.
"""

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", minversion="5", reason="the seeded models come from transformers 5")

VOCAB = 128
_TOKENS = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, pad_token_id=0)
_ATTENTION = dict(
    hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128
)


def qwen3(layers=3, seed=0):
    config = transformers.Qwen3Config(**_TOKENS, **_ATTENTION, num_hidden_layers=layers, head_dim=8)
    return _language(transformers.Qwen3ForCausalLM, config, seed)


def llama(layers=2, seed=0):
    config = transformers.LlamaConfig(**_TOKENS, **_ATTENTION, num_hidden_layers=layers)
    return _language(transformers.LlamaForCausalLM, config, seed)


def minimax_m2(layers=4, seed=0):
    """The mixture of experts that the users' documents are about, with 62 layers there."""
    config = transformers.MiniMaxM2Config(
        **_TOKENS, **_ATTENTION, num_hidden_layers=layers, head_dim=8, num_local_experts=4, num_experts_per_tok=2
    )
    return _language(transformers.MiniMaxM2ForCausalLM, config, seed)


def mixtral(layers=2, seed=0):
    config = transformers.MixtralConfig(
        **_TOKENS, **_ATTENTION, num_hidden_layers=layers, num_local_experts=4, num_experts_per_tok=2
    )
    return _language(transformers.MixtralForCausalLM, config, seed)


def gpt2(layers=2, seed=0):
    """Its head is tied to its embedding: one parameter, two modules."""
    config = transformers.GPT2Config(**_TOKENS, n_positions=128, n_embd=32, n_layer=layers, n_head=4)
    return _language(transformers.GPT2LMHeadModel, config, seed)


def mamba(layers=2, seed=0):
    config = transformers.MambaConfig(
        **_TOKENS, hidden_size=32, num_hidden_layers=layers, state_size=8, time_step_rank=4, use_mambapy=False
    )
    return _language(transformers.MambaForCausalLM, config, seed)


def vit(layers=2, seed=0):
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
    model = _seeded(lambda: transformers.ViTForImageClassification(config), seed)
    return model, {"pixel_values": torch.randn(2, 3, 32, 32, generator=_generator(seed))}


def encoder(layers=2, seed=0):
    """torch's own encoder; in eval mode its layers take the fused path, which calls none of their submodules."""

    def build():
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        return nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(32), enable_nested_tensor=False)

    return _seeded(build, seed), (torch.randn(2, 8, 32, generator=_generator(seed)),)


ALL = {make.__name__: make for make in (encoder, gpt2, llama, mamba, minimax_m2, mixtral, qwen3, vit)}
"""Name → function, for tests that go through all of them."""


def run(model, inputs):
    """The model's output for the inputs, a dict or a tuple."""
    with torch.inference_mode():
        return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def _language(model_class, config, seed):
    ids = torch.randint(3, VOCAB, (2, 8), generator=_generator(seed))
    return _seeded(lambda: model_class(config), seed), {"input_ids": ids}


def _seeded(build, seed):
    # The caller's random numbers stay as they were: a test's result must not hang on how many models it built before.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().eval()


def _generator(seed):
    return torch.Generator().manual_seed(seed)
