"""The wheel holds the compiled measurement, and works where nothing else of the project is."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SCRIPT = """
import torch, layertap
from layertap.measure import native
print(layertap.__file__)
model = torch.nn.Linear(3, 2)
with layertap.record(model) as rec:
    model(torch.ones(1, 3))
assert rec.run[""].statistics.count == 2
assert native.available(), "the compiled measurement was not loaded"
from layertap.capture import short_way
assert short_way.available(), "the compiled tap was not loaded"
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_an_installed_wheel_measures_with_compiled_code(tmp_path):
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    held = zipfile.ZipFile(wheel).namelist()
    libraries = {
        f"layertap/{name}.so" for name in ("measure/_onepass", "measure/_pair", "store/_mapped", "capture/_tap.abi3")
    }
    assert wheel.name.split("-")[2:4] == ["cp310", "abi3"]
    assert libraries <= set(held) or sys.platform == "darwin"
    assert not [name for name in held if name.endswith(".c.orig") or "/tests/" in name]
    # Installed into a folder of its own, with the checkout out of reach; torch comes from this environment.
    there = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(there), str(wheel)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    env = {**os.environ, "PYTHONPATH": str(there)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(there))
