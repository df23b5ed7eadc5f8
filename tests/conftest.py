"""Tests read English, whatever the machine speaks, and use one thread a process: the processes are the parallelism."""

import os

os.environ["LAYERTAP_LANG"] = "en"
os.environ.setdefault("OMP_NUM_THREADS", "1")
