"""A small model in context parallelism: each rank has two chunks of the sequence, and keys and values go round."""

from __future__ import annotations

import math

import torch
import torch.distributed._functional_collectives as funcol
from torch import nn

from fault.spread import HEADS, WIDTH, Attention, _turned, by_rank, late


class Ring(Attention):
    """Attention whose ranks hold parts of the sequence: keys and values go round, the softmax is put together."""

    def __init__(self, whole, mesh):
        super().__init__()
        self.load_state_dict(whole.state_dict())
        self.mesh, self.places = mesh, {}
        self.positions = lambda x, head: self.places["turned"]

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        size = self.mesh.size()
        self.places = {name: zigzag(torch.arange(size * x.shape[1]), self.mesh, 0) for name in ("turned", "own")}
        cos, sin = self.rotary(self.positions(x, q).float())
        q, k = (_turned(self.norm(part), cos, sin) for part in (q, k))
        own = place = self.places["own"]
        most = total = made = None
        for _ in range(size):
            scores = (q @ k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
            scores = scores.masked_fill(own[:, None] < place[None, :], -1e9)
            top = scores.amax(-1, keepdim=True)
            new = top if most is None else torch.maximum(top, most)
            weights = (scores - new).exp()
            fade = 0 if most is None else (most - new).exp()
            total = weights.sum(-1, keepdim=True) + (0 if total is None else total * fade)
            made = weights @ v + (0 if made is None else made * fade)
            most = new
            late[0]()
            k, v, place = (handed_on(one, self.mesh) for one in (k, v, place))
        return self.o((made / total).transpose(1, 2).flatten(-2))


def handed_on(tensor, mesh):
    """What the rank before it has, for each rank."""
    from torch.distributed._local_tensor import tensor_map

    size = mesh.size()
    everything = funcol.wait_tensor(funcol.all_gather_single(tensor.detach().contiguous(), 0, mesh))
    return tensor_map(everything, lambda rank, own: own.chunk(size)[(rank - 1) % size].clone())


def zigzag(tensor, mesh, dim):
    """The first chunk with the last, as load-balanced context parallelism has it."""
    from torch.distributed._local_tensor import rank_map, tensor_map

    def part(rank, own):
        pieces = own.chunk(2 * mesh.size(), dim)
        return torch.cat([pieces[rank], pieces[2 * mesh.size() - 1 - rank]], dim)

    tensor = tensor.detach()
    return tensor_map(tensor, part) if hasattr(tensor, "_local_tensors") else rank_map(lambda rank: part(rank, tensor))


def context_parallel(model, mesh):
    """Each rank has all weights, and two chunks of the sequence."""
    for block in model.blocks:
        block.attention = Ring(block.attention, mesh)
    return model


CONTEXT = {
    "mesh": {"cp": 4},
    r"[^:]*(:(in|out)put.*)?": {"dims": "b t[cp:zigzag] d"},
    r":input.*|embed:input.*": {"dims": "b t[cp:zigzag]"},
    r".*\.norm(:(in|out)put.*)?": {"dims": "b h t[cp:zigzag] d"},
    r".*\.rotary:input.*": {"dims": "t[cp:zigzag]"},
    r".*\.rotary:output.*": {"dims": "t[cp:zigzag] d"},
}
"""How the values of a model in `context_parallel` lie on the ranks."""


def other_slice(model):
    """One rank turns its heads by chunks one after the other, where the sequence is cut in zigzag."""
    attention, plain = model.blocks[0].attention, model.blocks[0].attention.positions
    attention.positions = lambda x, head: by_rank(lambda own: torch.arange(len(own), 2 * len(own)), 1)(plain(x, head))


def stale_whole(model):
    """One of the ranks that hold all weights has old ones."""
    feed = model.blocks[0].feed
    feed.down.weight = different_on(2, feed.down.weight, lambda held: held * 0.5 + 0.01)


def different_on(rank, tensor, change):
    """A parameter with other values on one rank."""
    from torch.distributed._local_tensor import rank_map

    whole = tensor.detach()
    return nn.Parameter(rank_map(lambda at: change(whole) if at == rank else whole.clone()))
