"""Eight families of small seeded models, each in eval mode, float32, on the CPU, with inputs.

Fresh transformers models have biases of 0, norm weights of 1 and weights so small that a layer hardly moves the
residual stream: in such a model a doubled bias or a permuted norm is no fault at all. So weights are drawn larger, and
biases, norm weights and running statistics at random.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

VOCAB = 128
_TOKENS: dict[str, Any] = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, pad_token_id=0)

Inputs = dict[str, Any] | tuple[Any, ...]
Built = tuple[nn.Module, Inputs]


def build(family: str, *, layers: int = 3, width: int = 32, seed: int = 0, tokens: int = 10) -> Built:
    """A model of the family and its inputs; the same arguments give the same bits in every process."""
    # The caller's random numbers stay as they were.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, inputs = FAMILIES[family](layers, width, tokens)
        _enliven(model)
        return model.eval(), inputs


def run(model: nn.Module, inputs: Inputs) -> Any:
    if callable(inputs):
        return inputs(model)
    with torch.no_grad():
        return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


class Cnn(nn.Module):
    """Convolutions with BatchNorm and residual blocks, after ResNet."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList([CnnBlock(width) for _ in range(layers)])
        self.head = nn.Linear(width, 16)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(image.to(self.stem.weight.dtype))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.mean((2, 3)))


class CnnBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.act = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = self.act(self.bn1(self.conv1(hidden)))
        return hidden + self.bn2(self.conv2(inner))


class Chaos(nn.Module):
    """A deep random net whose every layer magnifies a difference: rounding alone moves its output by 10-30 %."""

    def __init__(self, layers: int, width: int, gain: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=gain / width**0.5)
        self.act = nn.Tanh()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.to(self.layers[0].weight.dtype)
        for layer in self.layers:
            hidden = self.act(layer(hidden))
        return hidden


def chaos(*, layers: int, gain: float, width: int = 48, seed: int = 0) -> Built:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Chaos(layers, width, gain)
        return model.eval(), (torch.randn(4, width),)


def _attention(width: int) -> dict[str, Any]:
    return dict(
        hidden_size=width,
        intermediate_size=2 * width,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.8 / width**0.5,
    )


def _ids(tokens: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, VOCAB, (2, tokens))}


def _qwen3(layers: int, width: int, tokens: int) -> Built:
    import transformers

    config = transformers.Qwen3Config(**_TOKENS, **_attention(width), num_hidden_layers=layers, head_dim=width // 4)
    return transformers.Qwen3ForCausalLM(config), _ids(tokens)


def _llama(layers: int, width: int, tokens: int) -> Built:
    import transformers

    config = transformers.LlamaConfig(**_TOKENS, **_attention(width), num_hidden_layers=layers)
    return transformers.LlamaForCausalLM(config), _ids(tokens)


def _minimax_m2(layers: int, width: int, tokens: int) -> Built:
    import transformers

    config = transformers.MiniMaxM2Config(
        **_TOKENS,
        **_attention(width),
        num_hidden_layers=layers,
        head_dim=width // 4,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return transformers.MiniMaxM2ForCausalLM(config), _ids(tokens)


def _gpt2(layers: int, width: int, tokens: int) -> Built:
    import transformers

    config = transformers.GPT2Config(
        **_TOKENS, n_positions=128, n_embd=width, n_layer=layers, n_head=4, initializer_range=0.8 / width**0.5
    )
    return transformers.GPT2LMHeadModel(config), _ids(tokens)


def _mamba(layers: int, width: int, tokens: int) -> Built:
    import transformers

    config = transformers.MambaConfig(
        **_TOKENS,
        hidden_size=width,
        num_hidden_layers=layers,
        state_size=8,
        time_step_rank=4,
        use_mambapy=False,
        initializer_range=0.8 / width**0.5,
    )
    return transformers.MambaForCausalLM(config), _ids(tokens)


def _vit(layers: int, width: int, tokens: int) -> Built:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        image_size=32,
        patch_size=8,
        initializer_range=0.8 / width**0.5,
    )
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def _t5(layers: int, width: int, tokens: int) -> Built:
    import transformers

    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=width,
        d_kv=width // 4,
        d_ff=2 * width,
        num_layers=layers,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    inputs = {**_ids(tokens), "decoder_input_ids": torch.randint(3, VOCAB, (2, 6))}
    return transformers.T5ForConditionalGeneration(config), inputs


def _cnn(layers: int, width: int, tokens: int) -> Built:
    return Cnn(layers, width), (torch.randn(2, 3, 12, 12),)


FAMILIES: dict[str, Callable[[int, int, int], Built]] = {
    "cnn": _cnn,
    "gpt2": _gpt2,
    "llama": _llama,
    "mamba": _mamba,
    "minimax_m2": _minimax_m2,
    "qwen3": _qwen3,
    "t5": _t5,
    "vit": _vit,
}


@torch.no_grad()
def _enliven(model: nn.Module) -> None:
    for name, module in model.named_modules():
        for key, value in module.named_parameters(recurse=False):
            if key == "bias" and not name.endswith("dt_proj"):  # its bias is a time step, and must stay small
                value.normal_(std=0.1)
            elif key == "weight" and value.dim() == 1:
                value.normal_(mean=1.0, std=0.2)
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.5, 1.5)
