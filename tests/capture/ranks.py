"""Two processes of one job over gloo, in which rank 1 is late: what rank 0 sees before a collective is done.

Run as a program it is one rank (`python ranks.py RANK WORLD FOLDER`): it runs every scenario below and saves what was
recorded, and what is right, to `FOLDER/RANK.pt`.
"""

import copy
import sys
import time
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import processes

LATE = 0.1
"""Seconds by which rank 1 comes later to its collectives."""
SCENARIOS = []


def run(folder, world=2):
    """Runs all scenarios; returns what each rank saved, in the order of the ranks."""
    return Saved(processes.run(__file__, folder, world, timeout=200))


class Saved:
    """What the ranks saved; `saved(rank, scenario)` fails where that scenario raised."""

    def __init__(self, saved):
        self._saved = saved

    def __call__(self, rank, name):
        found = self._saved[rank][name]
        assert not isinstance(found, str), found
        return found


def scenario(function):
    SCENARIOS.append(function)
    return function


def main(rank, world, folder):
    from torch.distributed.device_mesh import init_device_mesh

    processes.join(rank, world, folder, seconds=60)
    job = types.SimpleNamespace(
        rank=rank, mesh=init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)), folder=folder
    )
    job.sleep = lambda: time.sleep(LATE if rank == 1 else 0.0)
    job.quiet = False
    processes.leave(rank, folder, processes.each({function.__name__: function for function in SCENARIOS}, job))


def network(job):
    """A feed-forward block; rank 1 is late between its two halves, and on the way back before them."""
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            hidden = self.up(x).relu()
            if not job.quiet:
                if hidden.requires_grad:
                    hidden.register_hook(lambda grad: job.sleep())
                job.sleep()
            return self.down(hidden)

    return Network()


def parallel(job):
    """The block on one rank, and split over all."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    whole = network(job)
    split = copy.deepcopy(whole)
    parallelize_module(split, job.mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return whole, split


def recorded(rec):
    return {str(site): rec.run[site].tensor().clone() for site in rec.run.sites}


def plain_hooks(model, *names):
    """What autograd itself sees: {name: gradient of its output}."""
    grads = {}
    for name in names:
        model.get_submodule(name).register_full_backward_hook(
            lambda module, before, after, name=name: grads.__setitem__(name, after[0].clone())
        )
    return grads


@scenario
def forward_and_back(job):
    """The output of `down` is reduced over the ranks; so is the gradient of the model's input."""
    import torch

    import layertap as lt

    whole, split = parallel(job)
    x, y = torch.randn(4, 8), torch.randn(4, 8, requires_grad=True)
    out = whole(y)
    out.square().sum().backward()
    right = {"output": out.detach(), "grad_input": y.grad.clone(), "param_grad": whole.down.bias.grad.clone()}
    roles = ("input", "output", "grad_input", "grad_output", "param", "param_grad")
    with lt.record(split, sites=["**"], what=roles, keep="tensor") as rec:
        z = y.detach().clone().requires_grad_()
        split(z).square().sum().backward()
    assert torch.allclose(z.grad, right["grad_input"], atol=1e-5), "the training itself"
    del x
    return {"right": right, "found": recorded(rec), "up": rec.run["up:grad_input"].record.sharding}


@scenario
def gradients(job):
    """Megatron's way: what every rank gets a copy of on the way in is reduced over the ranks on the way back."""
    import torch
    import torch.distributed._functional_collectives as funcol
    from torch import nn

    import layertap as lt

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            job.sleep()
            return funcol.all_reduce(grad, "sum", job.mesh)

    class Part(nn.Linear):
        def forward(self, x):
            return super().forward(Copy.apply(x))

    model = nn.Sequential(nn.Linear(8, 8), Part(8, 8))
    roles = ("grad_input", "grad_output", "param_grad")
    with lt.record(model, sites=["0", "1"], what=roles, keep="tensor") as rec:
        model(torch.ones(2, 8)).sum().backward()
    grad = model[1].weight.detach().sum(0).expand(2, 8) * 2
    return {"found": recorded(rec), "right": grad, "bias": grad.sum(0)}


@scenario
def one_rank_records(job):
    """The others run bare: no rank may wait for a collective that only the recording rank calls."""
    import contextlib

    import torch

    import layertap as lt

    whole, split = parallel(job)
    x = torch.randn(4, 8)
    recording = lt.record(split, sites=["**"], what=("input", "output", "param"), keep="tensor")
    with torch.no_grad(), recording if job.rank == 0 else contextlib.nullcontext() as rec:
        split(x)
    return {"right": whole(x).detach(), "found": recorded(rec) if job.rank == 0 else {}}


@scenario
def not_due(job):
    """On a step that is not recorded the program does not wait for its peers in the module."""
    import torch

    import layertap as lt

    _, split = parallel(job)
    pending = []
    with torch.no_grad(), lt.record(split, sites="down", keep="tensor", schedule="every 2") as rec:
        for _ in range(2):
            out = split(torch.ones(4, 8))
            pending.append(torch._C._distributed_c10d._get_work_registry_size())
            out.trigger_wait()
            rec.step()
    return pending


@scenario
def nested(job):
    """Pending tensors inside a DTensor, a cache object, a dictionary, and without any wrapper."""
    import torch
    import torch.distributed._functional_collectives as funcol
    from torch import nn
    from torch.distributed.tensor import DTensor, Partial, Replicate

    import layertap as lt

    class Cache:
        def __init__(self, keys):
            self.keys = [keys]

    class Made(nn.Module):
        def __init__(self, make):
            super().__init__()
            self.make = make

        def forward(self, x):
            job.sleep()
            return self.make(x)

    def distributed(x):
        local = DTensor.from_local(x.clone(), job.mesh, [Partial()], run_check=False)
        return local.redistribute(placements=[Replicate()], async_op=True)

    def unwrapped(x):
        return torch.ops._c10d_functional.all_reduce(x, "sum", job.mesh.get_group().group_name)

    reduce = lambda x: funcol.all_reduce(x, "sum", job.mesh)  # noqa: E731
    cases = {
        "DTensor": distributed,
        "a cache": lambda x: (x, Cache(reduce(x))),
        "a view in a dictionary": lambda x: {"state": reduce(x).view(8, 4)},
        "no wrapper": unwrapped,
    }
    found = {}
    for name, make in cases.items():
        model = nn.Sequential(Made(make))
        x = torch.arange(32.0).reshape(4, 8) * (job.rank + 1)
        with torch.no_grad(), lt.record(model, sites="0", keep="tensor") as rec:
            out = model(x)
        found[name] = recorded(rec)
        if name == "no wrapper":
            torch.ops._c10d_functional.wait_tensor(out)
    return {"right": torch.arange(32.0).reshape(4, 8) * 3, "found": found}


@scenario
def compiled(job):
    """A compiled model: what its modules return as DTensors, what they return plain, and statistics alone."""
    import torch
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import layertap as lt

    job.quiet = True  # a model that sleeps is not compiled as one graph
    whole = network(job)
    split = copy.deepcopy(whole)
    plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
    parallelize_module(split, job.mesh, plan)
    model, x = torch.compile(split, backend="aot_eager"), torch.randn(4, 8)
    found = {}
    for keep in ("tensor", "stats"):
        with torch.no_grad(), lt.record(model, sites=["up", "down"], what="output", keep=keep) as rec:
            job.sleep()
            model(x)
        found[keep] = recorded(rec) if keep == "tensor" else {str(s): rec.run[s].statistics for s in rec.run.sites}
    job.quiet = False
    with torch.no_grad():
        return {"up": whole.up(x), "down": whole(x), "found": found, "sharding": rec.run["up"].record.sharding}


@scenario
def sequence_parallel(job):
    """torch's example of sequence parallelism, watched; a first alarm would be the example's, not the tool's."""
    import torch
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import layertap as lt

    model = network(job)
    plan = {
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
    }
    parallelize_module(model, job.mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, foreach=True)
    roles = ("input", "output", "grad_input", "grad_output", "param_grad")
    folder = f"{job.folder}/sequence-{job.rank}"
    with lt.watch(model, path=folder, sites="*", what=roles, schedule=1, ring=3, ranks=[0, 1]) as watch:
        for step in range(3):
            torch.manual_seed(step)
            model(torch.rand(20, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    run = lt.Run(folder)
    largest = {str(site): max(record.statistics.abs_max for record in run[site]) for site in run.sites}
    return {"reports": [str(report) for report in watch.reports], "largest": largest, "records": len(largest)}


@scenario
def parts(job):
    """Statistics alone of tensors that lie in parts, from all ranks in one folder, and the same from one process."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    import layertap as lt

    class Doubled(nn.Module):
        def forward(self, x):
            out = 2 * x
            if self is wrong and job.rank == 1:
                out.to_local()[3, 2] += 1
            return out

    torch.manual_seed(0)
    wrong = None
    model, whole = nn.Sequential(Doubled(), Doubled()), torch.randn(6, 10)
    trained = nn.Sequential(nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3))

    def train(model):
        model(whole).square().sum().backward()

    def record(name, model, run):
        folder = f"{job.folder}/parts-{name}"
        with lt.record(model, folder, sites="**", what=("input", "output", "param_grad"), durability="none"):
            run()

    for name, dim in {"columns": 1, "rows": 0, "broken": 1}.items():
        x, wrong = distribute_tensor(whole, job.mesh, [Shard(dim)]), model[1] if name == "broken" else None
        record(name, model, lambda x=x: model(x))
    wrong = None
    if job.rank == 0:
        record("one", model, lambda: model(whole))
        one = copy.deepcopy(trained)
        record("trained", one, lambda: train(one))
    fully_shard(trained, mesh=job.mesh)
    record("fsdp", trained, lambda: train(trained))


@scenario
def monitored(job):
    """`Monitor` writes files of what the collective gives."""
    import torch

    import layertap as lt

    whole, split = parallel(job)
    x = torch.randn(4, 8)
    folder = f"{job.folder}/monitored-{job.rank}"
    layers = {"down": {"alias": "d", "record_type": "single"}}
    with torch.no_grad(), lt.Monitor(split, layers, [1], folder, batch_indices=[0]) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        split(x)
        found = monitor.get_single_data()["d"]["data"]
        right = whole(x)
    return {"right": right, "found": next(iter(found.values()))}


@scenario
def fault(job):
    """`find_fault` of two split models; all ranks call it, as they call the model."""
    import torch

    import layertap as lt

    _, one = parallel(job)
    other, x = copy.deepcopy(one), torch.randn(4, 8)
    clean = lt.find_fault(one, other, (x,))
    with torch.no_grad():
        other.down.bias.to_local().add_(1.0)
    broken = lt.find_fault(one, other, (x,))
    return {"verdicts": (clean.verdict, broken.verdict), "site": str(broken.site), "text": f"{clean}\n{broken}"}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
