"""The viewer on a run of a million records: how long each page takes, and how much memory the server holds.

    python benchmarks/load.py 1000000 --keep FOLDER --only open      # makes FOLDER/same
    python benchmarks/view.py FOLDER/same

The first page is asked for right after the server listens, so nothing has been read before. Exits 1 if it takes longer
than 2 s.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from pathlib import Path

TARGET = 2.0
"""Seconds for the first page."""
PAGES = ("/", "/", "/rows.json?from=400&count=200", "/?site=layers.7", "/runs", "/training", "/training", "/state.json")


def main() -> None:
    command = [sys.executable, "-m", "layertap", "view", *sys.argv[1:], "--no-browser", "--port", "0"]
    started = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(line for line in server.stdout if "http://" in line)
        port = int(address.split("127.0.0.1:")[1].split("/")[0])
        print(f"listening after {time.perf_counter() - started:.1f} s")
        seconds = [asked(server.pid, port, page) for page in PAGES]
    finally:
        server.kill()
        server.wait()
    sys.exit(seconds[0] > TARGET)


def asked(pid: int, port: int, page: str) -> float:
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("GET", page)
    answer = connection.getresponse()
    size = len(answer.read())
    seconds = time.perf_counter() - started
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    print(f"{page:32} {answer.status} {size:8} bytes {seconds:6.2f} s   {peak:5} MiB at most", flush=True)
    return seconds


if __name__ == "__main__":
    main()
