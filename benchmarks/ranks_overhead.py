"""What recording costs each rank of a tensor-parallel model, against the same model bare, in one run.

    python benchmarks/ranks_overhead.py --ranks 4 --rounds 15

A small Qwen3 is spread over gloo processes by torch's tensor parallelism. Each round runs it bare, recorded with
statistics and recorded with tensors, in turn; a rank's ratio is the median over rounds of recorded ÷ bare, of the time
that passed and of the processor's time that the rank used (its writer's thread included).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank >= 0:
        one_rank(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", __file__, *sys.argv[1:], "--folder", folder]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(given.ranks)]
        if any(rank.wait() for rank in ranks):
            raise SystemExit("a rank failed")


def one_rank(given: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    import layertap as lt

    torch.set_num_threads(1)
    store = f"file://{given.folder}/store"
    dist.init_process_group(
        "gloo", init_method=store, rank=given.rank, world_size=given.ranks, timeout=timedelta(seconds=120)
    )
    mesh = init_device_mesh("cpu", (given.ranks,), mesh_dim_names=("tp",))
    model, ids = spread_model(mesh, given.tokens)
    spent: dict[str, list[tuple[float, float]]] = {"bare": [], "stats": [], "tensor": []}
    counts = {}
    with torch.no_grad():
        for number in range(given.rounds + 2):
            for way, times in spent.items():
                dist.barrier()
                if way == "bare":
                    took = steps(model, ids, lambda: None)
                else:
                    folder = given.folder / f"{way}-{number}"
                    with lt.record(model, folder, sites="model.layers.**", keep=way, durability="none") as rec:
                        took = steps(model, ids, rec.step)
                    counts[way] = rec.receipt.records // (STEPS + 1)
                if number >= 2:  # the first rounds warm up
                    times.append(took)
    for way in ("stats", "tensor"):
        bare = statistics.median(wall for wall, _ in spent["bare"])
        told = [f"rank {given.rank}: bare {1e3 * bare:.0f} ms; {way}, {counts[way]} records a step"]
        for name, which in (("time", 0), ("processor", 1)):
            pairs = zip(spent[way], spent["bare"], strict=True)
            ratios = [one[which] / other[which] for one, other in pairs]
            low, middle, high = statistics.quantiles(ratios, n=4)
            told.append(f"{name} x{middle:.2f} (quartiles x{low:.2f} to x{high:.2f})")
        print("; ".join(told), flush=True)
    dist.barrier()
    dist.destroy_process_group()


STEPS = 3
"""Steps of one measurement, after one that is not measured: the first call of a module looks up what later ones use."""


def steps(model, ids, after) -> tuple[float, float]:
    """Seconds a step, and seconds of processor."""
    model(input_ids=ids)
    after()
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        model(input_ids=ids)
        after()
    return (time.perf_counter() - start) / STEPS, (time.process_time() - cpu) / STEPS


def spread_model(mesh, tokens: int):
    import torch
    import transformers
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=1024,
    )
    model = transformers.Qwen3ForCausalLM(config).eval()
    plan = {}
    for number in range(config.num_hidden_layers):
        name = f"model.layers.{number}"
        plan |= {f"{name}.self_attn.{part}_proj": ColwiseParallel() for part in "qkv"}
        plan |= {f"{name}.mlp.{part}_proj": ColwiseParallel() for part in ("gate", "up")}
        plan |= {f"{name}.self_attn.o_proj": RowwiseParallel(), f"{name}.mlp.down_proj": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    return model, torch.randint(0, 1024, (1, tokens), generator=torch.Generator().manual_seed(0))


if __name__ == "__main__":
    main()
