"""The index card is small, and importing it costs nothing."""

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import layertap

ROOT = Path(__file__).parents[1]


def test_the_public_names_are_pinned():
    assert layertap.__all__ == [
        "Monitor",
        "Run",
        "Site",
        "audit",
        "bake",
        "diff",
        "find_fault",
        "open_target",
        "prune",
        "record",
        "sweep",
        "watch",
    ]


def test_the_public_names_are_sorted_and_few():
    assert layertap.__all__ == sorted(layertap.__all__)
    assert len(layertap.__all__) <= 12


@pytest.mark.parametrize("name", layertap.__all__)
def test_every_public_name_is_there(name):
    assert getattr(layertap, name).__name__ == name
    assert name in dir(layertap)


def test_an_unknown_name_says_which_names_there_are():
    with pytest.raises(AttributeError, match=r"layertap has no 'recrod'; it has .*record"):
        _ = layertap.recrod


def test_the_version_is_the_installed_one():
    assert layertap.__version__ == importlib.metadata.version("layertap")


RECEIPT = "Receipt(sites=(), steps=0, records=0, bytes=0, seconds=0.0, overhead=0.0)"


@pytest.mark.parametrize(
    ("room", "code"),
    [
        ("layertap", "import layertap; layertap.Site"),
        ("layertap.select", "import layertap.select"),
        ("layertap.targets", "import layertap; layertap.open_target"),
        ("layertap.store", "import layertap; layertap.Run"),
        ("layertap.report", f"from layertap.site import Receipt; str({RECEIPT})"),
        ("layertap.report", "import layertap.report.page, layertap.report.finding"),
        ("layertap.cli", "from layertap.cli import main"),
        ("layertap.cli", "import sys; sys.argv = ['layertap', '--help']\nfrom layertap.cli import main\nmain()"),
    ],
)
def test_no_torch_until_it_is_needed(room, code):
    spec = importlib.util.find_spec(room)
    if spec is None or spec.origin is None:
        pytest.skip(f"{room} is not built yet")
    # An exit hook, since `--help` leaves by SystemExit.
    script = f"import atexit, sys\natexit.register(lambda: print('TORCH', 'torch' in sys.modules))\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("TORCH False")
