"""Small models spread over ranks, whole ones beside them, and the faults that such code has.

`layouts` and `FAULTS` serve two beds: all ranks in one process (`LocalTensorMode`), and processes over gloo. A scenario
is `(layout, fault)`; `build` gives the reference, the candidate and the inputs of `find_fault`.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, HEADS, TOKENS, EXPERTS = 32, 4, 8, 4
late = [lambda: None]
"""What is called before a collective: one rank may be made to come late to it."""


class Rotary(nn.Module):
    """Cosines and sines for the positions that it is given."""

    def forward(self, positions):
        angles = positions[:, None] / 10 ** torch.arange(0, 4).float()
        return angles.cos(), angles.sin()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.RMSNorm(WIDTH // HEADS)
        self.positions = lambda x, head: torch.arange(x.shape[1])
        self.rotary = Rotary()

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        cos, sin = self.rotary(self.positions(x, q).float())
        q, k = (_turned(self.norm(part), cos, sin) for part in (q, k))
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        weights = scores.masked_fill(mask, -math.inf).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(-2))


def _turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        made = nn.functional.silu(self.gate(x)) * self.up(x)
        late[0]()
        return self.down(made)


class Experts(nn.Module):
    """All experts in two tensors; a rank may hold some of them, and adds up what they make."""

    def __init__(self):
        super().__init__()
        self.into = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 6)
        self.back = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 6)
        self.first = lambda: 0
        self.copied, self.reduce = (lambda x: x), (lambda x: x)

    def forward(self, x, shares):
        into, back = (p.to_local() if isinstance(p, DTensor) else p for p in (self.into, self.back))
        mine = shares if into.shape[0] == EXPERTS else self.first(shares)
        made = torch.einsum("bte,btd,edf->btef", mine, self.copied(x), into).relu()
        return self.reduce(torch.einsum("btef,efd->btd", made, back))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS, bias=False), Experts()

    def forward(self, x):
        shares = self.router(x).softmax(-1)
        best = shares.topk(2, -1).indices
        return self.experts(x, shares * torch.zeros_like(shares).scatter(-1, best, 1.0))


class Block(nn.Module):
    def __init__(self, mixture):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed = Attention(), Mixture() if mixture else Feed()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Model(nn.Module):
    def __init__(self, mixture=False):
        super().__init__()
        self.embed = nn.Embedding(64, WIDTH)
        self.blocks = nn.Sequential(Block(mixture))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 64, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.embed(ids))))


def whole(mixture=False):
    torch.manual_seed(0)
    model = Model(mixture)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def ids(seed=0):
    return torch.randint(0, 64, (2, TOKENS), generator=torch.Generator().manual_seed(seed))


def tensor_parallel(model, mesh):
    """torch's own styles; the experts by hand, as there is no style for them."""
    plan = {}
    for number, block in enumerate(model.blocks):
        name = f"blocks.{number}"
        plan |= {f"{name}.attention.{part}": ColwiseParallel() for part in "qkv"}
        plan[f"{name}.attention.o"] = RowwiseParallel()
        if isinstance(block.feed, Feed):
            plan |= {f"{name}.feed.gate": ColwiseParallel(), f"{name}.feed.up": ColwiseParallel()}
            plan[f"{name}.feed.down"] = RowwiseParallel()
        else:
            spread_experts(block.feed.experts, mesh)
    parallelize_module(model, mesh, plan)
    for block in model.blocks:
        reduce_gradient(block.attention.norm.weight, mesh)
    return model


def reduce_gradient(parameter, mesh):
    """Of a whole parameter that each rank uses for its own heads."""

    def reduce(own):
        own.grad = funcol.wait_tensor(funcol.all_reduce(own.grad, "sum", mesh))

    parameter.register_post_accumulate_grad_hook(reduce)


def spread_experts(experts, mesh):
    for name in ("into", "back"):
        setattr(experts, name, nn.Parameter(distribute_tensor(getattr(experts, name).detach(), mesh, [Shard(0)])))
    experts.first = lambda shares: (
        DTensor.from_local(shares, mesh, [Replicate()], run_check=False).redistribute(placements=[Shard(2)]).to_local()
    )
    experts.copied, experts.reduce = (lambda x: Copied.apply(x, mesh)), (lambda x: Summed.apply(x, mesh))
    return experts


class Copied(torch.autograd.Function):
    """Hands on what every rank has, and adds up what comes back."""

    @staticmethod
    def forward(ctx, x, mesh):
        ctx.mesh = mesh
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return funcol.wait_tensor(funcol.all_reduce(grad.contiguous(), "sum", ctx.mesh)), None


class Summed(torch.autograd.Function):
    """Adds up what the ranks have; each gets the whole gradient back."""

    @staticmethod
    def forward(ctx, x, mesh):
        late[0]()
        return funcol.wait_tensor(funcol.all_reduce(x.contiguous(), "sum", mesh))

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Column(nn.Module):
    """A linear layer of which each rank has some rows, in plain tensors, as Megatron has it."""

    def __init__(self, whole, mesh):
        super().__init__()
        self.mesh, self.copied = mesh, True
        self.weight = plain_part(whole.weight, mesh, 0)

    def forward(self, x):
        return nn.functional.linear(Copied.apply(x, self.mesh) if self.copied else x, self.weight)


class Row(nn.Module):
    """A linear layer of which each rank has some columns; its summands are reduced, and the bias is added then."""

    def __init__(self, whole, mesh):
        super().__init__()
        self.mesh, self.times, self.early = mesh, 1, False
        self.weight, self.bias = plain_part(whole.weight, mesh, 1), whole.bias
        self.share = lambda made: made

    def forward(self, x):
        made = self.share(nn.functional.linear(x, self.weight, self.bias if self.early else None))
        for _ in range(self.times):
            made = Summed.apply(made, self.mesh)
        return made if self.early else made + self.bias


def plain_part(tensor, mesh, axis):
    from torch.distributed._local_tensor import rank_map

    coordinates = {int(rank): place for place, rank in enumerate(mesh.mesh.tolist())}
    return nn.Parameter(rank_map(lambda rank: tensor.detach().chunk(len(coordinates), axis)[coordinates[rank]].clone()))


def megatron(model, mesh):
    """The same, in plain tensors and by hand."""
    for block in model.blocks:
        attention, feed = block.attention, block.feed
        for name in "qkv":
            setattr(attention, name, Column(getattr(attention, name), mesh))
        attention.o = Row(attention.o, mesh)
        reduce_gradient(attention.norm.weight, mesh)
        if isinstance(feed, Feed):
            feed.gate, feed.up, feed.down = Column(feed.gate, mesh), Column(feed.up, mesh), Row(feed.down, mesh)
        else:
            spread_experts(feed.experts, mesh)
    return model


@torch.no_grad()
def on_rank(rank, tensor, change):
    """Changes what one rank holds, in place."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    held = getattr(local, "_local_tensors", None)
    if held is not None:
        from torch.distributed._local_tensor import local_tensor_mode

        with local_tensor_mode().disable():
            change(held[rank])
    elif dist.get_rank() == rank:
        change(local)


def by_rank(change, rank):
    """What a function gives on one rank; elsewhere the value as it is."""
    from torch.distributed._local_tensor import tensor_map

    return lambda value: tensor_map(value, lambda at, own: change(own) if at == rank else own.clone())


class Stale:
    """On one rank, what was made in the call before."""

    def __init__(self, rank):
        self.rank, self.kept = rank, {}

    def __call__(self, value):
        from torch.distributed._local_tensor import tensor_map

        def old(at, own):
            before = self.kept.get(at, own)
            self.kept[at] = own.detach().clone()
            return before.clone() if at == self.rank else own.clone()

        return tensor_map(value.detach(), old)


def clean(model):
    """Nothing is wrong."""


def stale_column(model):
    model = getattr(model, "module", model)
    on_rank(2, model.blocks[0].attention.q.weight, lambda held: held.mul_(0.5).add_(0.01))


def stale_row(model):
    on_rank(1, model.blocks[0].feed.down.weight, lambda held: held.add_(0.02 * torch.randn_like(held)))


def not_reduced(model):
    model.blocks[0].attention.o.times = 0


def reduced_twice(model):
    model.blocks[0].feed.down.times = 2


def bias_in_summands(model):
    model.blocks[0].feed.down.early = True


def summand_lost(model):
    model.blocks[0].attention.o.share = by_rank(torch.zeros_like, 3)


def summand_stale(model):
    model.blocks[0].feed.down.share = Stale(2)


def gradient_not_reduced(model):
    model.blocks[0].attention.norm.weight._post_accumulate_grad_hooks.clear()


def input_gradient_not_reduced(model):
    model.blocks[0].feed.gate.copied = False


def other_positions(model):
    """One rank turns its heads by the positions of another part of the sequence."""
    attention, plain = model.blocks[0].attention, model.blocks[0].attention.positions
    attention.positions = lambda x, head: by_rank(lambda own: own.flip(0), 1)(
        plain(x, head) + 0 * head[0, 0, :, 0].long()
    )


def other_expert(model):
    """Two ranks have each other's expert."""
    experts = model.blocks[0].feed.experts
    with torch.no_grad():
        whole = experts.into.full_tensor().clone()
    first = whole if type(whole) is torch.Tensor else whole._local_tensors[0]
    on_rank(1, experts.into, lambda held: held.copy_(first[2:3]))
    on_rank(2, experts.into, lambda held: held.copy_(first[1:2]))


def other_order(model):
    """What the ranks made is gathered in another order."""
    mesh = model.blocks[0].attention.o.mesh
    model.head = Gathered(model.head, mesh)


class Gathered(nn.Module):
    """A head of which each rank has some words, gathered at the end."""

    def __init__(self, whole, mesh, order=(1, 0, 2, 3)):
        super().__init__()
        self.weight, self.mesh, self.order = plain_part(whole.weight, mesh, 0), mesh, order

    def forward(self, x):
        made = nn.functional.linear(x, self.weight).contiguous()
        parts = funcol.wait_tensor(funcol.all_gather_single(made, 0, self.mesh)).chunk(4)
        return torch.cat([parts[number] for number in self.order], -1)


@torch.no_grad()
def fill(parameter, whole):
    """The values of a whole parameter in a distributed one that was only made."""
    right = distribute_tensor(whole.detach().clone(), parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.to_local().copy_(right.to_local())


def gradient_lost_on_the_way(model):
    """What reduced the gradient hung on a parameter that `fully_shard` has replaced."""


def _sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


LAYOUTS = {
    "tensor": lambda model, tp, grid: tensor_parallel(model, tp),
    "megatron": lambda model, tp, grid: megatron(model, tp),
    "fsdp": lambda model, tp, grid: _sharded(model, tp),
    "grid": lambda model, tp, grid: _sharded(tensor_parallel(model, grid["tp"]), grid["dp"]),
    "ddp": lambda model, tp, grid: nn.parallel.DistributedDataParallel(model),
}


def step(model, given):
    """A training step, for faults that show on the way back."""
    model(given).square().mean().backward()


FAULTS = {
    # name: (mixture, trained, what is said: site, cause, ranks)
    clean: (False, False, None),
    stale_column: (False, False, ("blocks.0.attention.q", "weights", (2,))),
    stale_row: (False, False, ("blocks.0.feed.down", "weights", (1,))),
    not_reduced: (False, False, ("blocks.0.attention.o", "reduce", ())),
    reduced_twice: (False, False, ("blocks.0.feed.down", "reduce", ())),
    bias_in_summands: (False, False, ("blocks.0.feed.down", "reduce", ())),
    summand_lost: (False, False, ("blocks.0.attention.o", "reduce", (3,))),
    summand_stale: (False, False, ("blocks.0.feed.down", "reduce", (2,))),
    gradient_not_reduced: (False, True, ("blocks.0.attention.norm", "reduce", ())),
    input_gradient_not_reduced: (False, True, ("blocks.0.feed.gate", "reduce", ())),
    other_positions: (False, False, ("blocks.0.attention", "structure", (1,))),
    other_expert: (True, False, ("blocks.0.feed.experts", "shard", (1, 2))),
    other_order: (False, False, ("head", "permutation", ())),
}
