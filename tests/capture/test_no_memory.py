"""Tensors whose values lie nowhere in memory are counted, and the process lives."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._functorch.aot_autograd import aot_module

import layertap as lt
from layertap.measure import measure, supported

X = torch.ones(2, 3)


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        made = function(*[arg.inner if isinstance(arg, Wrapper) else arg for arg in args], **(kwargs or {}))
        return Wrapper(made) if isinstance(made, torch.Tensor) else made


def freed():
    tensor = torch.ones(2, 3)
    tensor.untyped_storage().resize_(0)
    return tensor


def half_freed():
    tensor = torch.ones(2, 3)
    tensor.untyped_storage().resize_(8)
    return tensor


def masked():
    return torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True]))


def gradient():
    """Autograd makes gradients that are known to be zero without memory."""
    return torch._efficientzerotensor(2, 3)


class Giving(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return x + 1, self.make()


MAKERS = [freed, half_freed, masked, gradient, lambda: Wrapper(torch.ones(3)), lambda: torch.ones(3, 3).to_mkldnn()]


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
@pytest.mark.parametrize("keep", ["stats", "tensor"])
@pytest.mark.parametrize("make", MAKERS)
def test_a_tensor_without_memory_is_counted(make, keep):
    assert supported(make())
    with pytest.raises(lt.errors.BadArgument, match="cannot measure"):
        measure(make())
    model = nn.Sequential(Giving(make))
    with lt.record(model, sites="0", keep=keep) as rec:
        model(X)
    assert [str(site) for site in rec.run.sites] == ["0:output.0"]
    assert sum(rec.receipt.sites[0].skipped.values()) == 1
    assert not rec.receipt.error


def test_inside_function_transforms():
    model = nn.Sequential(nn.Linear(3, 3))
    bare = model(X)
    with lt.record(model, sites="0", keep="tensor") as rec:
        torch.func.functionalize(model)(X)
        torch.vmap(model)(X)
        torch.func.grad(lambda x: model(x).sum())(X)
        torch.func.jacrev(model)(X)
        aot_module(model, fw_compiler=lambda graph, inputs: graph)(X)
        model(X)
    assert not rec.receipt.error
    site = rec.receipt.sites[0]
    assert site.skipped["a tensor inside torch.vmap represents many tensors"] == 1
    assert torch.equal(rec.run["0@2"].tensor(), bare), "inside torch.func.grad the values are there"
    assert torch.equal(rec.run[f"0@{site.fired - 1}"].tensor(), bare)


def test_gradients_that_are_known_to_be_zero():
    script = """
import torch, layertap as lt
from torch import nn
from torch._functorch.aot_autograd import aot_module
model = nn.Sequential(nn.Linear(3, 3), nn.Identity())
x = torch.ones(2, 3, requires_grad=True)
with lt.record(model, sites="*", what=("output", "grad_output", "grad_input")) as rec:
    out = model(x)
    torch.autograd.grad(out, x, torch._efficientzerotensor(2, 3), retain_graph=True)
print(rec.receipt.records, [dict(site.skipped) for site in rec.receipt.sites])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 "), done.stdout
