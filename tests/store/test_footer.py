"""The footer is read without pyarrow's metadata, which ends the process on some damaged files."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from layertap.store import RunWriter
from layertap.store.footer import read_chunks
from store.making import kept, receipt

FLIPS = """
import sys
from pathlib import Path
from layertap.errors import LayertapError
from layertap.store import Run
folder, step = Path(sys.argv[1]), int(sys.argv[2])
(file,) = (folder / "records").glob("*.parquet")
sound = file.read_bytes()
length = int.from_bytes(sound[-8:-4], "little")
refused = 0
for place in range(len(sound) - 8 - length, len(sound), step):
    damaged = bytearray(sound)
    damaged[place] ^= 1 << (place % 8)
    file.write_bytes(damaged)
    try:
        run = Run(folder)
        list(run.records())
        refused += bool(run.problems)
    except LayertapError:
        refused += 1
print("survived", refused)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer = RunWriter(tmp_path / "run", info={"model": "Toy"})
    for site in range(4):
        writer.add(*kept(np.full((3, 4), site, np.float32), f"layers.{site}", 0, order=site))
    writer.close(receipt())
    return tmp_path / "run"


def test_it_says_what_pyarrow_says(folder: Path) -> None:
    (file,) = (folder / "records").glob("*.parquet")
    metadata = pq.read_metadata(file)
    chunks = read_chunks(file)
    assert len(chunks) == metadata.num_row_groups == 1
    for place, chunk in enumerate(chunks[0]):
        right = metadata.row_group(0).column(place)
        assert (chunk.path, chunk.values, chunk.unpacked) == (
            right.path_in_schema,
            right.num_values,
            right.total_uncompressed_size,
        )
        assert (chunk.text, chunk.dictionary) == (right.physical_type == "BYTE_ARRAY", right.has_dictionary_page)
        if right.physical_type == "INT64" and right.statistics is not None and right.statistics.has_min_max:
            assert chunk.largest == right.statistics.max or right.statistics.logical_type.type == "INT"


def test_what_is_not_asked_for_is_passed_over(folder: Path) -> None:
    (file,) = (folder / "records").glob("*.parquet")
    called = [0]

    def seen(frame: object, event: str, _: object) -> None:
        called[0] += event == "call"

    sys.setprofile(seen)
    try:
        (chunks,) = read_chunks(file)
    finally:
        sys.setprofile(None)
    # A run of a million records has 25,000 of these columns.
    assert called[0] < 45 * len(chunks)


@pytest.mark.parametrize("step", [37, pytest.param(1, marks=pytest.mark.slow)])
def test_no_flipped_bit_of_a_footer_ends_the_process(folder: Path, step: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FLIPS, str(folder), str(step)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    word, refused = done.stdout.split()
    assert word == "survived"
    assert int(refused) > 10


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1" + bytes(40) + b"\xff\xff\xff\x7fPAR1", b"PAR1\x15" * 9 + b"\x08\0\0\0PAR1"]
)
def test_what_is_no_footer_is_a_value_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises((ValueError, KeyError, TypeError)):
        if not read_chunks(tmp_path / "x"):
            raise ValueError("no row groups")
