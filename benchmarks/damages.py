"""Checkpoints damaged in fourteen ways: what `from_pretrained(output_loading_info=True)` reports, and what audit does.

    python benchmarks/damages.py        # a table in Markdown, as docs/weights.md has it

Each damaged checkpoint is loaded by transformers; what was loaded is then compared with the healthy checkpoint.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from layertap.weights import audit

Tensors = dict[str, torch.Tensor]
SIZES = dict(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4)
HEADS = dict(num_key_value_heads=4, head_dim=8, pad_token_id=0, bos_token_id=None, eos_token_id=None)


def dense() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, **HEADS)).eval()


def sparse() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SIZES, **HEADS, num_local_experts=4, num_experts_per_tok=2)
    return transformers.MixtralForCausalLM(config).eval()


def transposed(t: Tensors) -> None:
    t["model.layers.1.self_attn.q_proj.weight"] = t["model.layers.1.self_attn.q_proj.weight"].t()


def exchanged(t: Tensors) -> None:
    q, k = (f"model.layers.1.self_attn.{name}_proj.weight" for name in "qk")
    t[q], t[k] = t[k], t[q]


def swapped_experts(t: Tensors) -> None:
    for part in ("w1", "w2", "w3"):
        a, b = (f"model.layers.0.block_sparse_moe.experts.{number}.{part}.weight" for number in (1, 2))
        t[a], t[b] = t[b], t[a]


def gate_for_up(t: Tensors) -> None:
    a, b = (f"model.layers.0.block_sparse_moe.experts.3.{part}.weight" for part in ("w1", "w3"))
    t[a], t[b] = t[b], t[a]


def stale_shard(t: Tensors) -> None:
    weight = t["model.layers.1.mlp.down_proj.weight"]
    weight[16:] = torch.randn(16, 64, generator=torch.Generator().manual_seed(1)) * 0.02


def embedding_row(t: Tensors) -> None:
    t["model.embed_tokens.weight"][17] = 0


def moved_rows(t: Tensors) -> None:
    t["lm_head.weight"] = t["lm_head.weight"].roll(1, 0)


def another_layer(t: Tensors) -> None:
    t["model.layers.2.mlp.up_proj.weight"] = t["model.layers.0.mlp.up_proj.weight"].clone()


def scaled(t: Tensors) -> None:
    t["model.layers.1.self_attn.o_proj.weight"] *= 8**-0.5


def not_finite(t: Tensors) -> None:
    t["model.layers.1.mlp.gate_proj.weight"][0, 0] = float("nan")


def missing(t: Tensors) -> None:
    del t["model.layers.1.mlp.up_proj.weight"]


def renamed(t: Tensors) -> None:
    t["model.layers.1.mlp.up.weight"] = t.pop("model.layers.1.mlp.up_proj.weight")


def cut_vocabulary(t: Tensors) -> None:
    t["lm_head.weight"] = t["lm_head.weight"][:64].clone()


def rounded(t: Tensors) -> None:
    for name in t:
        t[name] = t[name].to(torch.float8_e4m3fn).float()


DAMAGES: list[tuple[str, Callable[[], transformers.PreTrainedModel], Callable[[Tensors], None]]] = [
    ("a square matrix transposed", dense, transposed),
    ("q and k exchanged", dense, exchanged),
    ("two experts swapped", sparse, swapped_experts),
    ("one expert's gate and up exchanged", sparse, gate_for_up),
    ("a stale shard", dense, stale_shard),
    ("one row of the embedding zero", dense, embedding_row),
    ("rows moved by one", dense, moved_rows),
    ("a layer's weight from another layer", dense, another_layer),
    ("scaled", dense, scaled),
    ("one NaN", dense, not_finite),
    ("a tensor missing", dense, missing),
    ("a tensor under another name", dense, renamed),
    ("half of the vocabulary", dense, cut_vocabulary),
    ("everything through fp8 and back", dense, rounded),
]


def zero_buffer(model: transformers.PreTrainedModel) -> None:
    model.model.rotary_emb.inv_freq.zero_()


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.ERROR)
    print("| damage | transformers reports | audit says |\n| --- | --- | --- |")
    for name, make, damage in DAMAGES:
        with tempfile.TemporaryDirectory() as room:
            healthy, damaged = Path(room) / "healthy", Path(room) / "damaged"
            make().save_pretrained(healthy)
            make().save_pretrained(damaged)
            tensors = load_file(damaged / "model.safetensors")
            damage(tensors)
            tensors = {key: value.contiguous() for key, value in tensors.items()}
            save_file(tensors, damaged / "model.safetensors", {"format": "pt"})
            cls = type(make())
            model, info = cls.from_pretrained(damaged, output_loading_info=True, ignore_mismatched_sizes=True)
            print(f"| {name} | {reported(info)} | {said(model, healthy)} |")
    with tempfile.TemporaryDirectory() as room:
        dense().save_pretrained(room)
        model, info = transformers.Qwen3ForCausalLM.from_pretrained(room, output_loading_info=True)
        zero_buffer(model)
        print(f"| zeros in a buffer that is not saved | {reported(info)} | {said(model, Path(room))} |")


def reported(info: dict[str, object]) -> str:
    found = [
        f"{len(keys)} {name.removesuffix('_keys')}"
        for name, keys in info.items()
        if isinstance(keys, (set, list)) and keys
    ]
    return ", ".join(found) or "nothing"


def said(model: transformers.PreTrainedModel, healthy: Path) -> str:
    found = audit(model, healthy)
    loud = [row for row in found.rows if row.weighs == "fault"]
    if not loud:
        return f"**nothing** ({found.verdict})"
    row = loud[0]
    more = f"; {len(loud) - 1} more" if len(loud) > 1 else ""
    return f"`{row.name or row.other}` {row.status}: {row.detail}{more}"


if __name__ == "__main__":
    main()
