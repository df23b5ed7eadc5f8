"""Training scripts that know nothing of layertap, and `layertap watch` around them."""

import textwrap

from typer.testing import CliRunner

from layertap import cli

LOOP = """
import os, sys, torch
from torch import nn

def fit(model, steps, each=lambda step: None, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        each(step)
        x = torch.randn(4, 8)
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer

class Net(nn.Sequential):
    pass

def net():
    return Net(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)])

torch.manual_seed(0)
"""


def script(folder, text, name="train.py"):
    path = folder / name
    path.write_text(LOOP + textwrap.dedent(text))
    return path


def watch(*args, code=0):
    """The verb in this process, the watched command in its own; what the command prints is seen by `capfd`."""
    result = CliRunner().invoke(cli.app, ["watch", *map(str, args)])
    if isinstance(result.exception, Exception) and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output
