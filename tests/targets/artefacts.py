"""Compiled files of one small network, in every format that can be opened."""

import contextlib
import io
import logging
import warnings

import torch
from torch import nn

import layertap as lt


class Pair(nn.Module):
    """Returns several values; the model uses the second first, and one not at all."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(6, 6)
        self.two = nn.Linear(6, 6)

    def forward(self, x):
        return self.one(x), self.two(x).tanh(), None


class Net(nn.Module):
    """Nested modules, a module called twice, one that is overwritten in place, one that leaves nothing."""

    def __init__(self):
        super().__init__()
        self.pair = Pair()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(3)])
        self.nothing = nn.Identity()
        self.shift = nn.LayerNorm(6)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        one, two, _ = self.pair(x)
        x = two.sin() * one
        for block in self.blocks:
            x = block(x)
        x = self.blocks[0](x)
        x = self.shift(self.nothing(x))
        x.tanh_()
        return self.head(x)


def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Net().eval()
        nn.init.normal_(model.shift.weight)
        return model


def inputs(seed):
    return (torch.randn(3, 6, generator=torch.Generator().manual_seed(seed)),)


def make(kind, model, args, path):
    """Compiles the model into a file; what the compilers print is theirs."""
    kwargs = args if isinstance(args, dict) else {}
    args = () if kwargs else args
    with quiet():
        if kind == "torchscript":
            made = torch.jit.trace(model, args or None, example_kwarg_inputs=kwargs or None, strict=False)
            made.save(path)
        elif kind == "exported":
            torch.export.save(torch.export.export(model, args, kwargs), path)
        elif kind == "onnx":
            torch.onnx.export(model, args, kwargs=kwargs, dynamo=True, verbose=False).save(path)
        else:
            import openvino

            made = openvino.convert_model(model, example_input=kwargs or args)
            openvino.save_model(made, path, compress_to_fp16=False)
    return path


FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}
"""OpenVINO's config where a test is of the values: on some CPUs it computes in bfloat16 unless told otherwise."""


def opened(path):
    """The file as a target that computes in float32 on every CPU."""
    return lt.open_target(path, config=FLOAT32 if path.suffix == ".xml" else None)


SUFFIXES = {"torchscript": ".pt", "exported": ".pt2", "onnx": ".onnx", "openvino": ".xml"}


@contextlib.contextmanager
def quiet(stdout=True):
    """What compilers and tracers print and warn of is theirs."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            if stdout:
                stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
