"""A tiny Qwen3 and a tiny Mixtral, trained for some seconds so that they have something to lose. A target of sweeps."""

import sys
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent


def build(kind):
    from sentences import VOCABULARY  # of examples/mamba_modes, copied beside this file when it runs

    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "use_cache": False,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    torch.manual_seed(0)
    if kind == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(head_dim=16, **common))
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(num_local_experts=4, num_experts_per_tok=2, **common)
    )


def train(kind, steps):
    from sentences import sentences

    torch.set_num_threads(1)
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for step in range(steps):
        ids = sentences(16, 32, step)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    torch.save(model.state_dict(), HERE / f"{kind}.pt")


def make(kind):
    from sentences import sentences

    model = build(kind)
    model.load_state_dict(torch.load(HERE / f"{kind}.pt"))
    return model.eval(), {"input_ids": sentences(4, 64, 9999)}


if __name__ == "__main__":
    train(sys.argv[1], 100)
