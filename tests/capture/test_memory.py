"""A run ten times as large as the budget is recorded within the budget."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, sys
import torch
from torch import nn
import layertap as lt

BUDGET, PIECE, TIMES = 64 << 20, 8 << 20, 80

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

model = nn.Sequential(nn.Identity())
x = torch.zeros(PIECE // 4)
with lt.record(model, sys.argv[1] + "/warm", sites="0", keep="tensor", budget=BUDGET) as rec:
    model(x)
before = peak()
with lt.record(model, sys.argv[1] + "/run", sites="0", keep="tensor", budget=BUDGET) as rec:
    for step in range(TIMES):
        model(x.fill_(step))
        rec.step()
print(json.dumps({"grown": peak() - before, "bytes": rec.receipt.bytes, "complete": rec.receipt.complete}))
run = lt.Run(sys.argv[1] + "/run")
assert all(run["0"].at(step=step).tensor()[-1].item() == step for step in range(TIMES))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs getrusage")
def test_peak_memory_stays_within_the_budget(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["complete"]
    assert told["bytes"] == 10 * (64 << 20)
    assert told["grown"] <= 1.25 * (64 << 20), told
