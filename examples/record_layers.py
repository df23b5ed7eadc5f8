"""Record every layer of a model, read the run back, and look at the layers side by side.

    python examples/record_layers.py

Uses a tiny seeded Qwen3 (pip install 'layertap[hf]'); put your own model and inputs in its place.
"""

import tempfile
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import layertap as lt


def tiny_qwen3() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=128, **size, **heads)).eval()


def main() -> None:
    model = tiny_qwen3()
    inputs = {"input_ids": torch.arange(32).reshape(1, 32)}
    folder = Path(tempfile.mkdtemp()) / "qwen3"

    with lt.record(model, folder, keep={"model.layers.*": "tensor"}) as rec:
        model(**inputs)
    print(rec.selection)
    print(rec.receipt)

    run = lt.Run(folder)  # from here on no torch is needed
    for site in run.sites:
        stats = run[site].statistics
        print(f"{site!s:20} mean {stats.mean:+.4f}  std {stats.std:.4f}  max |x| {stats.abs_max:.3f}")
    print("layer 2 as numpy:", run["model.layers.2"].numpy().shape)
    print(run.table(["site", "shape", "l2", "fingerprint"]).to_pandas().tail(3))


if __name__ == "__main__":
    main()
