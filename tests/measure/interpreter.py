"""Runs a test file's `main` by triton's interpreter."""

import json
import os
import subprocess
import sys

import pytest


def interpreted(file):
    """What it prints last, as JSON. In a process of its own: triton decides on import whether to interpret."""
    pytest.importorskip("triton", minversion="3.3", reason="older interpreters cannot read booleans")
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, file], check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
