"""Under a memory limit the recorder gives way before the model has to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.capture import headroom, room
from layertap.capture.buffers import Buffers

MIB = 1 << 20

LIMITED = """
import resource, sys, time
import torch
from torch import nn
import layertap as lt
from layertap.store import RunWriter

class Hungry(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Identity() for _ in range(40))
    def forward(self, x):
        for layer in self.layers:
            torch.empty(220 << 20, dtype=torch.uint8)  # what a model needs for a moment
            x = layer(x + 1)
        return x

add = RunWriter.add
def slow(self, record, data=None):
    time.sleep(0.05 if data is not None else 0)  # a disk that cannot keep up
    return add(self, record, data)
RunWriter.add = slow

torch.set_num_threads(1)
model, x = Hungry(), torch.zeros(4 << 20)  # 16 MiB a layer
folder, retained = sys.argv[1], sys.argv[2] == "memory"
with lt.record(model, None if retained else folder + "/warm", sites="layers.0"):
    model(torch.zeros(4))
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (640 << 20), resource.RLIM_INFINITY))
with lt.record(model, None if retained else folder + "/run", sites="layers.*", keep="tensor") as rec:
    for _ in range(2):
        assert model(x)[0] == 40
        rec.step()
receipt = rec.receipt
dropped = sum(site.dropped for site in receipt.sites)
print(receipt.records, receipt.lost, repr(receipt.error), dropped, receipt.bytes >> 20)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize("where", ["disk", "memory"])
def test_a_model_under_a_limit_runs_on_while_it_is_recorded(tmp_path: Path, where: str) -> None:
    source = Path(lt.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), where],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    records, lost, error, dropped, kept = done.stdout.split()
    assert (int(records), int(lost), error) == (2 * 41, 0, "''")
    assert int(kept) >= 16, "nothing was kept at all"
    if where == "memory":
        assert int(dropped) > 40
        assert "memory was left" in done.stderr


def test_where_no_copy_can_be_made_the_statistics_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(self: Buffers, tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 16 bytes.")

    monkeypatch.setattr(Buffers, "copy_of", no_memory)
    model = nn.Sequential(nn.Identity())
    with lt.record(model, keep="tensor") as rec:
        model(torch.ones(1 << 16))
    assert rec.run["0"].record.kept == "stats"
    assert rec.run["0"].statistics.l2 == 1 << 8
    assert sum(site.dropped for site in rec.receipt.sites) == 2
    assert (rec.receipt.error, rec.receipt.lost, rec.receipt.complete) == ("", 0, False)
    assert "can't allocate memory" in rec.receipt.notes[0]


@pytest.mark.parametrize("policy", ["block", "stats", "drop"])
def test_a_small_allowance_makes_tensors_give_way(tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "allowance", lambda held: 100)
    model = nn.Sequential(nn.Identity())
    with lt.record(model, tmp_path, keep="tensor", policy=policy) as rec:  # type: ignore[arg-type]
        model(torch.ones(20))  # fits
        model(torch.ones(200))
    kept = [record.kept for record in rec.run.records() if record.asked and record.site.path == "0"]
    assert kept == ["tensor", "stats"] if policy != "drop" else ["tensor"]
    assert "memory was left" in str(rec.receipt)


def test_spare_buffers_are_let_go_when_the_budget_shrinks() -> None:
    buffers = Buffers(1000)
    lent = [buffers.copy_of(torch.ones(50)) for _ in range(3)]
    for tensor in lent:
        buffers.take_back(tensor)
    assert buffers.spare == 600
    buffers.limit(400)
    assert buffers.spare == 400
    buffers.limit(0)
    assert buffers.spare == 0


CGROUPS = {
    "v2": ("0::/a/b\n", "", "memory.max", "memory.current", "inactive_file"),
    "v1": (
        "4:cpu,memory:/a/b\n3:pids:/x\n",
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}


@pytest.mark.parametrize("version", CGROUPS)
def test_limits_of_a_container_and_of_those_above_it(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, root, most, used, inactive = CGROUPS[version]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(line)
    for name, (limit, now) in {"a": (1000 * MIB, 700 * MIB), "a/b": ("max", 10)}.items():
        group = tmp_path / "sys/fs/cgroup" / root / name
        group.mkdir(parents=True)
        (group / most).write_text(f"{limit}\n")
        (group / used).write_text(f"{now}\n")
        (group / "memory.stat").write_text(f"anon 5\n{inactive} {100 * MIB}\n")
    monkeypatch.setattr(headroom, "Path", lambda text: tmp_path / str(text).lstrip("/"))
    assert list(headroom._of_containers()) == [400 * MIB]


def test_the_allowance_counts_what_the_recorder_holds_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom, "_of_machine", lambda: 1000)
    monkeypatch.setattr(headroom, "_hard_limits", lambda: iter([800, 400]))
    assert headroom.allowance(0) == 100
    monkeypatch.setattr(headroom, "_hard_limits", lambda: iter([700, 300]))
    assert headroom.allowance(100) == 100
    monkeypatch.setattr(headroom, "_hard_limits", lambda: iter(()))
    assert headroom.allowance(0) == 500
