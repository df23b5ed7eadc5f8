"""One of four processes over gloo: real models spread by their own plans, with a peer that comes late.

`python ranks.py RANK WORLD FOLDER [NAME]` runs the scenarios below (of one name) and saves what was found to
`FOLDER/RANK.pt`.
"""

import copy
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import processes

LATE = 0.05
"""Seconds by which rank 1 comes later to its collectives."""


def run(folder, world=4):
    """What each rank found, by scenario."""
    return processes.run(__file__, folder, world)


def main(rank, world, folder, only=""):
    from torch.distributed.device_mesh import init_device_mesh

    import layertap as lt
    from fault import spread

    processes.join(rank, world, folder)
    spread.late[0] = lambda: time.sleep(LATE if rank == 1 else 0.0)
    meshes = (
        init_device_mesh("cpu", (4,), mesh_dim_names=("tp",)),
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")),
    )
    found = {}
    for name, build in scenarios(spread, meshes, rank).items():
        if only not in name:
            continue
        try:
            reference, candidate, inputs, *more = build()
            finding = lt.find_fault(reference, candidate, inputs, mapping=more[0] if more else None)
            told = finding.verdict, finding.site, finding.cause, finding.ranks
            found[name] = (*told, str(finding), finding.forwards)
            print(name, told, finding.forwards, flush=True)
        except Exception:  # noqa: BLE001 - its own test tells, and the other scenarios go on
            found[name] = ("raised", "", "", (), traceback.format_exc(), {})
    processes.leave(rank, folder, found)


def scenarios(spread, meshes, rank):
    from fault import sequence

    tp, grid = meshes
    found = {}

    def add(name, layout, fault, mixture=False, trained=False):
        def build():
            reference = spread.whole(mixture)
            candidate = spread.LAYOUTS[layout](copy.deepcopy(reference), tp, grid)
            fault(candidate)
            # Ranks along a data-parallel dimension are given other data.
            ids = spread.ids({"fsdp": rank, "ddp": rank, "grid": rank // 2}.get(layout, 0))
            return reference, candidate, (lambda m: spread.step(m, ids)) if trained else (ids,)

        found[name] = build

    for layout in spread.LAYOUTS:
        add(f"{layout} clean", layout, spread.clean)
        add(f"{layout} stale_column", layout, spread.stale_column)
    for layout in ("fsdp", "ddp", "tensor"):
        add(f"{layout} trained", layout, spread.clean, trained=True)
    add("grid gradient_not_reduced", "grid", spread.gradient_lost_on_the_way, trained=True)
    for fault, (mixture, trained, _) in spread.FAULTS.items():
        if fault not in (spread.clean, spread.stale_column):
            add(f"megatron {fault.__name__}", "megatron", fault, mixture, trained)
    for fault in (spread.clean, sequence.other_slice):
        found[f"context {fault.__name__}"] = lambda fault=fault: context(spread, tp, fault)
    found["raises"] = lambda: raising(spread, rank)
    for name in ("qwen3", "mixtral"):
        for fault in ("clean", "stale", "not reduced"):
            found[f"{name} {fault}"] = lambda name=name, fault=fault: transformers_model(spread, tp, name, fault)
    return found


def raising(spread, rank):
    """One rank cannot run the reference."""
    from fault import sequence

    reference = spread.whole()

    def step(model):
        if rank == 3:
            raise ValueError("no such head")
        return model(spread.ids())

    return reference, copy.deepcopy(reference), step, sequence.CONTEXT


def context(spread, mesh, fault):
    """Parts of the sequence, in zigzag, as the mapping says."""
    from fault import sequence

    reference = spread.whole()
    candidate = sequence.context_parallel(copy.deepcopy(reference), mesh)
    fault(candidate)
    return reference, candidate, (spread.ids(),), sequence.CONTEXT


def transformers_model(spread, mesh, name, fault):
    """transformers' own models, spread by transformers' own plans."""
    import torch
    import transformers
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    sizes = dict(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=64, num_hidden_layers=2, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    if name == "qwen3":
        reference = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, head_dim=8)).eval()
    else:
        more = dict(num_local_experts=4, num_experts_per_tok=2)
        reference = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **more)).eval()
    candidate = apply_tensor_parallelism(copy.deepcopy(reference), mesh)
    with torch.no_grad():
        right = dict(reference.named_parameters())
        for path, parameter in candidate.named_parameters():
            if hasattr(parameter, "placements") and any(hasattr(p, "dim") for p in parameter.placements):
                spread.fill(parameter, right[path])
    attention = candidate.model.layers[1].self_attn
    if fault == "stale":
        spread.on_rank(2, attention.o_proj.weight, lambda held: held.mul_(0.5).add_(0.01))
    if fault == "not reduced":
        plain = attention.o_proj.weight.to_local()
        attention.o_proj.forward = lambda x: torch.nn.functional.linear(x, plain)
    ids = torch.randint(3, 128, (2, 10), generator=torch.Generator().manual_seed(0))
    return reference, candidate, {"input_ids": ids}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
