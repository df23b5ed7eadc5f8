"""The way of a kept tensor from a device to the disk, on a driver that is none: its cost by counts, its truth."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from layertap.capture import short_way
from layertap.store import columns

pytestmark = [
    pytest.mark.skipif(not short_way.available(), reason="needs a C compiler at build time"),
    pytest.mark.skipif(shutil.which("cc") is None or sys.platform == "darwin", reason="compiles a driver"),
]
PROGRAM = Path(__file__).with_name("device_programs.py")


def result_of(name, folder):
    command = [sys.executable, "-W", "ignore", PROGRAM, name, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return result_of("counts", tmp_path_factory.mktemp("counts"))


def test_a_batch_is_fetched_and_written_by_one_call_each(found):
    for one in found:
        batches = -(-one["records"] // columns.CAPACITY)
        assert one["complete"]
        assert one["records"] > 2 * columns.CAPACITY
        assert one["handed"] == batches
        assert one["on_device"] == one["records"], "one copy in the order of the stream for each tensor"
        assert one["to_host"] == batches, "what is filled of the arena, not tensor by tensor"
        assert one["writes"] <= 3 * batches, "the tensors of a batch together; a file has its header besides"


def test_no_python_runs_for_a_record(found):
    few, many = found
    more = many["records"] - few["records"]
    assert more > 3000
    assert many["calling"] - few["calling"] < more / 50, "the model's own call takes some, its modules none"
    assert many["writer"] - few["writer"] < more / 10


def test_what_is_recorded_is_what_the_modules_returned(tmp_path):
    assert result_of("values", tmp_path) == {"wrong": [], "sites": 20, "complete": True}


def test_the_ring_gives_each_half_back_before_it_fills_again(tmp_path):
    assert result_of("fetched", tmp_path) == {"wrong": [], "overwritten": 0}
