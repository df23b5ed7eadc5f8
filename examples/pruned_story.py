"""A pruned model that talks garbage, four times over: one command says which of four things it is.

A small Qwen3 is trained for a minute on periodic sequences, so that it has something to lose. Then it is spoilt as
pruned models are: (a) the pruned class is lost when the model is saved and loaded, (b) the weights are loaded into a
skeleton of another layout with strict=False, (c) the attention of layer 0 is skipped and the cache is not told,
(d) it is cut too deep. And (e): cut well.

    python examples/pruned_story.py [LAYERS] [STEPS]
"""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from torch import nn

import layertap as lt
from layertap.weights import Diagnosis, doctor, knockout, save_pruned

VOCABULARY = 48


def sequences(count: int, length: int = 32, seed: int = 0) -> torch.Tensor:
    """Random motifs of 3 to 6 tokens, repeated: what comes next is in what came before."""
    make = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        period = int(torch.randint(3, 7, (1,), generator=make))
        motif = torch.randint(1, VOCABULARY, (period,), generator=make)
        rows.append(motif.repeat(length // period + 1)[:length])
    return torch.stack(rows)


def trained(layers: int = 28, steps: int = 300) -> nn.Module:
    """A small Qwen3 that continues such sequences."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # matrices of 64 columns: more threads wait for each other
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.0)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        ids = sequences(16, seed=step)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}", file=sys.stderr)
    return model.eval()


def lost_class(model: nn.Module, folder: Path) -> nn.Module:
    """(a) Saved pruned, loaded by `from_pretrained`: the stock layers are back, with new weights."""
    save_pruned(lt.prune(model, "attention[:1] mlp[n//2:]", how="physical"), folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def skeleton(model: nn.Module) -> nn.Module:
    """(b) A new skeleton, and a state dict with a prefix that does not fit: strict=False says nothing."""
    torch.manual_seed(1)
    empty = type(model)(model.config)
    held = {name.replace("model.layers", "layers"): tensor for name, tensor in model.state_dict().items()}
    empty.load_state_dict(held, strict=False)
    return empty.eval()


class Silent(nn.Module):
    """Skips attention as one writes it at first: zeros, and the cache is forgotten."""

    def forward(self, hidden_states: torch.Tensor, **_: object) -> tuple[torch.Tensor, None]:
        return torch.zeros_like(hidden_states), None


def forgetful(model: nn.Module) -> nn.Module:
    """(c) Right in one pass, wrong when it decodes."""
    cut = copy.deepcopy(model)
    cut.model.layers[0].self_attn = Silent()
    return cut


def too_deep(model: nn.Module) -> nn.Module:
    """(d) Everything as planned, and too much of it."""
    return lt.prune(model, "attention[n//4:] mlp[n//2:]", how="physical")


def stories(model: nn.Module, folder: Path) -> dict[str, Diagnosis]:
    """Every candidate's diagnosis."""
    inputs = {"input_ids": sequences(4, seed=9999)}
    spare = knockout(model, inputs, blocks=False).rows[0].site
    candidates = {
        "a: class lost at save and load": lost_class(model, folder),
        "b: strict=False into another layout": skeleton(model),
        "c: cache not told": forgetful(model),
        "d: cut too deep": too_deep(model),
        f"e: {spare} alone": lt.prune(model, {spare: "skip"}, how="physical"),
    }
    return {name: doctor(model, candidate, inputs) for name, candidate in candidates.items()}


def main() -> None:
    layers, steps = (int(value) for value in (*sys.argv[1:3], *("28", "300")[len(sys.argv) - 1 :]))
    model = trained(layers, steps)
    with tempfile.TemporaryDirectory() as folder:
        for name, diagnosis in stories(model, Path(folder)).items():
            print(f"\n({name})\n{diagnosis}")


if __name__ == "__main__":
    main()
