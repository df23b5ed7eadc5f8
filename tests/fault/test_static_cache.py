"""A cache of a fixed length against one that grows: values of another size are never forced, nor judged."""

import copy
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from layertap.fault import find_fault
from layertap.result import code_of


@dataclass
class Growing:
    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None

    def put(self, keys, values):
        old = (self.keys, self.values)
        self.keys = keys if old[0] is None else torch.cat([old[0], keys], 1)
        self.values = values if old[1] is None else torch.cat([old[1], values], 1)
        return self.keys, self.values, self.keys.shape[1]


@dataclass
class Fixed:
    keys: torch.Tensor = field(default_factory=lambda: torch.zeros(2, 12, 16))
    values: torch.Tensor = field(default_factory=lambda: torch.zeros(2, 12, 16))
    length: int = 0

    def put(self, keys, values):
        self.keys, self.values = self.keys.to(keys.dtype), self.values.to(keys.dtype)
        end = self.length + keys.shape[1]
        self.keys[:, self.length : end], self.values[:, self.length : end] = keys, values
        self.length = end
        return self.keys, self.values, end


class Attention(nn.Module):
    late = 0

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x, cache):
        keys, values, length = cache.put(self.k(x), self.v(x))
        begin = length - x.shape[1]
        seen = torch.arange(keys.shape[1]) <= torch.arange(begin, length)[:, None] - self.late
        return self.o(F.scaled_dot_product_attention(self.q(x), keys, values, seen[None]))


class Decoder(nn.Module):
    kind = Growing

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layers, self.head = nn.ModuleList(Attention() for _ in range(3)), nn.Linear(16, 20)

    def forward(self, tokens):
        caches, found = [self.kind() for _ in self.layers], []
        for part in (tokens[:, :4], tokens[:, 4:5], tokens[:, 5:6]):
            x = self.embed(part)
            for layer, cache in zip(self.layers, caches, strict=True):
                x = x + layer(x, cache)
            found.append(self.head(x))
        return torch.cat(found, 1)


TOKENS = (torch.randint(0, 20, (2, 6), generator=torch.Generator().manual_seed(1)),)


@pytest.fixture
def pair():
    torch.manual_seed(0)
    reference = Decoder().eval()
    candidate = copy.deepcopy(reference)
    candidate.kind = Fixed
    return reference, candidate


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_another_length_is_no_fault(pair, dtype):
    reference, candidate = pair
    found = find_fault(reference, candidate.to(dtype), TOKENS)
    assert found.verdict in ("identical", "noise"), str(found)
    told = {note.values["told"] for note in found.notes if code_of(note) == "fault.other_form"}
    assert "layers.1:input.cache.keys@1" in told
    assert all(":input.cache." in site for site in told), told  # what attention makes of it is judged all the same
    assert not any(row.found.shape for row in found.table)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_fault_beside_it_is_found(pair, name):
    reference, candidate = pair
    with torch.no_grad():
        getattr(candidate.layers[1], name).weight[3] *= -1
    found = find_fault(reference, candidate, TOKENS)
    assert (found.verdict, found.site, found.cause) == ("fault", f"layers.1.{name}", "weights"), str(found)


def test_an_attention_that_sees_one_key_less_is_named(pair):
    reference, candidate = pair
    candidate.layers[1].late = 1
    candidate.layers[1].__class__ = type("Attention", (Attention,), {})
    found = find_fault(reference, candidate, TOKENS)
    assert (found.verdict, found.site) == ("fault", "layers.1"), str(found)
