"""E7: whatever a mode does to its process, no other mode is changed by it, and what became of it is said."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import layertap as lt
from layertap.errors import BadArgument
from layertap.sweeping import read_sweep

NET = """
import os
import sys
import threading
import time
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, deed):
        super().__init__()
        self.deed = deed
        self.fc = nn.Linear(16, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        if self.deed in DEEDS_OF_FORWARD:
            DEEDS_OF_FORWARD[self.deed]()
        return self.out(torch.relu(self.fc(x)))


def patch():
    torch.relu = lambda x: x * 0
    nn.Linear.forward = lambda self, x: x @ self.weight.T + self.bias + 1
    torch.use_deterministic_algorithms(True)
    torch.set_default_dtype(torch.float64)
    os.environ["LEAK"] = "1"
    os.chdir("/")
    sys.path.insert(0, "/nowhere")
    print("printed by the vandal")
    sys.stdout.write("no end of line")
    threading.Thread(target=time.sleep, args=(600,), daemon=False).start()


def spawn():
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)


DEEDS_OF_FORWARD = {
    "crash": lambda: os.kill(os.getpid(), 11),
    "hang": lambda: time.sleep(600),
    "leave": lambda: sys.exit(0),
    "vanish": lambda: os._exit(0),
    "fill": lambda: bytearray(1 << 62),
}


def make(deed=""):
    if "LEAK" in os.environ:
        raise RuntimeError("a variable leaked")
    torch.manual_seed(0)
    net = Net(deed).eval()
    if deed == "patch":
        patch()
    if deed == "spawn":
        spawn()
    if deed == "destroy":
        other = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runs", "plain")
        if os.path.isdir(other):
            open(os.path.join(other, "run.json"), "w").write("{}")
    return net
"""
pytestmark = pytest.mark.slow  # some twenty processes
DEEDS = ("patch", "crash", "hang", "leave", "vanish", "fill", "spawn")


def write(folder, *modes, jobs=2):
    (folder / "net.py").write_text(NET)
    lines = [
        'target = "net.py:make"',
        'reference = "plain"',
        f"jobs = {jobs}",
        "input = { random = [3, 16], seed = 1 }",
    ]
    for mode in modes:
        lines.append(f"[modes.{mode}]")
        if mode not in ("plain", "after"):
            lines.append(f'arguments = {{ deed = "{mode}" }}')
        if mode == "hang":
            lines.append("timeout = 12")
    path = folder / "modes.toml"
    path.write_text("\n".join(lines))
    return path


def bits(mode):
    return {str(record.site): record.fingerprint for record in mode.run.records()}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deeds")
    return lt.sweep(write(folder, "plain", *DEEDS, "after"), folder / "runs")


def test_a_mode_after_all_of_them_has_the_same_bits_as_one_before(done):
    assert bits(done.modes["plain"]) == bits(done.modes["after"])
    assert ("plain", "after") in [tuple(name for name in group if name != "spawn") for group in done.groups]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("crash", "was killed by SIGSEGV"),
        ("hang", "took longer than 12 s and was ended; timeout = SECONDS allows more"),
        ("leave", "ended with exit code 0"),
        ("vanish", "ended with exit code 0"),
        ("fill", "MemoryError"),
    ],
)
def test_what_became_of_a_mode_is_said(done, mode, said):
    assert said in done.modes[mode].error
    assert done.modes[mode].run is None
    assert done.exit_code == 3


def test_a_mode_that_patches_torch_and_prints_and_leaves_a_thread_is_recorded_all_the_same(done):
    vandal = done.modes["patch"]
    assert not vandal.error
    assert "printed by the vandal" in Path(vandal.log).read_text()
    assert bits(vandal) != bits(done.modes["plain"])


def test_what_a_mode_has_started_ends_with_it(done):
    pid = int(Path(done.modes["spawn"].log).read_text().split()[1])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_both_orders_give_the_same_bits(done, tmp_path):
    turned = lt.sweep(write(tmp_path, "after", "patch", "plain", jobs=1), tmp_path / "runs")
    for name in ("plain", "patch", "after"):
        assert bits(turned.modes[name]) == bits(done.modes[name])


def test_a_run_that_another_mode_has_damaged_is_not_compared_as_if_it_were_whole(tmp_path):
    folder = tmp_path
    first = lt.sweep(write(folder, "plain", "after", jobs=1), folder / "runs")
    assert first.groups == (("plain", "after"),)
    found = lt.sweep(write(folder, "plain", "after", "destroy", jobs=1), folder / "runs")
    assert "plain" not in [name for group in found.groups for name in group]
    assert found.modes["plain"].error
    assert found.exit_code == 3


def test_a_sweep_that_is_killed_goes_on_where_it_was(tmp_path):
    path = write(tmp_path, "plain", "after", "hang", jobs=1)
    code = f"import layertap as lt; lt.sweep({str(path)!r}, {str(tmp_path / 'runs')!r})"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "runs/after/mode.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with pytest.raises(BadArgument, match="no result of a sweep"):
        read_sweep(tmp_path / "runs")
    again = lt.sweep(path, tmp_path / "runs", ["plain", "after"])
    assert all(mode.resumed for mode in again.modes.values())
    assert again.groups == (("plain", "after"),)
    assert not [one for one in (tmp_path / "runs").iterdir() if one.name.startswith(".record")]
