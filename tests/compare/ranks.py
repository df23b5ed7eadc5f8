"""Four gloo processes that record one model: parts of the sequence, parts of the features, stages of a pipeline.

`python ranks.py RANK WORLD FOLDER` writes a run for each scenario below to `FOLDER/NAME`.
"""

import copy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import processes

KEPT = {"sites": "**", "what": ("input", "output"), "keep": "tensor", "durability": "none"}
BATCH, MICROBATCHES = 4, 4
TENSOR = {
    "mesh": {"tp": 4},
    r".*attention\.[qkv]|.*attention\.o:input|.*feed\.(gate|up)|.*feed\.down:input": {"dims": "b t h[tp]"},
    r".*\.(norm|rotary)(:(in|out)put.*)?": {"dims": "b h[tp] t d"},
    r".*\.rotary(:output.*)": {"dims": "t d"},
    r".*\.rotary:input": {"dims": "t"},
}
"""How the values of `spread.megatron` lie on the ranks."""


def run(folder):
    return processes.run(__file__, folder, 4)


def main(rank, world, folder):
    from torch.distributed.device_mesh import init_device_mesh

    processes.join(rank, world, folder)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    processes.leave(rank, folder, processes.each(SCENARIOS, rank, mesh, Path(folder)))


def recorded(model, folder, inputs, **more):
    import torch

    import layertap as lt

    with torch.no_grad(), lt.record(model, folder, **KEPT, **more) as rec:
        model(*inputs)
    return list(rec.receipt.notes)


def one(rank, mesh, folder):
    """The same in one process."""
    from fault import spread

    if rank == 0:
        recorded(spread.whole(), folder / "one", (spread.ids(),))


def context(rank, mesh, folder):
    """Parts of the sequence: with the mapping, without it, and with a wrong slice of the positions on one rank."""
    from fault import sequence, spread

    model, ids = sequence.context_parallel(spread.whole(), mesh), sequence.zigzag(spread.ids(), mesh, 1)
    told = recorded(model, folder / "context", (ids,), mapping=sequence.CONTEXT)
    recorded(model, folder / "context-plain", (ids,))
    sequence.other_slice(model)
    recorded(model, folder / "context-broken", (ids,), mapping=sequence.CONTEXT)
    return told


def tensor(rank, mesh, folder):
    """Parts of the features, in plain tensors."""
    from fault import spread

    model = spread.megatron(copy.deepcopy(spread.whole()), mesh)
    recorded(model, folder / "tensor-plain", (spread.ids(),))
    spread.on_rank(2, model.blocks[0].attention.q.weight, lambda held: held.mul_(0.5).add_(0.01))
    recorded(model, folder / "tensor-broken", (spread.ids(),))


def long_model():
    """Two blocks, and a batch that divides."""
    import torch

    from fault import spread

    model = spread.whole()
    torch.manual_seed(1)
    model.blocks.append(spread.Block(False))
    ids = torch.randint(0, 64, (BATCH, spread.TOKENS), generator=torch.Generator().manual_seed(2))
    return model, ids


def pipeline(rank, mesh, folder):
    """Two stages on ranks 0 and 1; the batch goes through in microbatches."""
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    import layertap as lt

    pair = dist.new_group([0, 1])
    if rank == 0:
        model, ids = long_model()
        recorded(model, folder / "long", (ids,))
    if rank > 1:
        return None
    for name in ("pipeline", "pipeline-broken"):
        stage, ids = staged(rank)
        if name == "pipeline-broken" and rank == 1:
            with torch.no_grad():
                stage.blocks[1].feed.down.weight[3].mul_(1.5)
        schedule = ScheduleGPipe(PipelineStage(stage, rank, 2, torch.device("cpu"), group=pair), MICROBATCHES)
        with torch.no_grad(), lt.record(stage, folder / name, **KEPT):
            schedule.step(ids) if rank == 0 else schedule.step()
    finding = lt.find_fault(long_model()[0], stage, (ids,))
    return finding.verdict, [note.code for note in finding.evidence], finding.forwards


def staged(rank):
    """The part of the model that one of two ranks has, under the names that it has in the whole."""
    from torch import nn

    model, ids = long_model()
    if rank == 0:
        model.blocks[1] = nn.Identity()
        model.norm, model.head = nn.Identity(), nn.Identity()
    else:
        model.blocks[0] = nn.Identity()
        model.embed = nn.Identity()
    return model, ids


SCENARIOS = {"one": one, "context": context, "tensor": tensor, "pipeline": pipeline}

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
