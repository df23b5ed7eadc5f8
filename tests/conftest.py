"""Tests read English, whatever the machine speaks, and use one thread a process: the processes are the parallelism."""

import os
import subprocess
import sys

os.environ["LAYERTAP_LANG"] = "en"
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_pyfunc_call(pyfuncitem):
    """A test that forks runs in a process of its own: compilers that other tests have loaded do not survive a fork."""
    if pyfuncitem.get_closest_marker("forks") is None or os.environ.get("LAYERTAP_FORKS"):
        return None
    name = pyfuncitem.nodeid.partition("::")[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{pyfuncitem.path}::{name}"]
    env = {**os.environ, "LAYERTAP_FORKS": "1"}
    env.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        command, cwd=pyfuncitem.config.rootpath, env=env, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
    return True
