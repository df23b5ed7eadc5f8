"""The format to the byte: a small run written today is the one that is checked in.

If a change of the format is meant, raise FORMAT and write the files anew: `python tests/store/test_golden.py`.
"""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import layertap.store.writer as writer_module
from layertap.measure.definition import fingerprint_of
from layertap.site import Sharding
from layertap.store import Run, RunWriter
from layertap.store.schema import SCHEMA
from store.making import kept, receipt, record, statistics

GOLDEN = Path(__file__).with_name("golden")
SESSION = "20260102T030405000006Z-0badcafe"
STEM = f"0-{SESSION}-000000"
SHARDING = Sharding(
    placements=("Replicate()", "Shard(dim=0)"),
    global_shape=(2,),
    offset=(1,),
    mesh_shape=(1, 2),
    mesh_names=("dp", "tp"),
    mesh_coordinate=(0, 1),
    mesh_origin=4,
)


def write(folder: Path) -> None:
    writer = RunWriter(folder, info={"model": "Toy", "floor": math.inf}, session=SESSION, clock=lambda: 1767323045.0)
    sketch = np.arange(251, dtype="<f4").tobytes()
    writer.add(record(":input.x", 0, asked=False, shape=(), sketch=b""))
    writer.add(*kept(np.arange(3, dtype=np.uint8), "odd", 1, order=1, epoch=2, batch=3, phase="train"))
    wide = np.array([[0x3F80, 0x7FC0, 0xFF80]], np.uint16)  # 1, NaN, -inf
    extreme = statistics(mean=math.nan, min=-math.inf, nan=1, neg_inf=1, first=(1.0, math.nan, -math.inf))
    row, data = kept(wide, "größe:output.äh@2", 1, order=2, dtype="bfloat16", sketch=sketch, statistics=extreme)
    writer.add(row, data)
    placed = {"sharding": SHARDING, "fingerprint_in_whole": 2**63, "sketch_in_whole": sketch[::-1]}
    writer.add(*kept(np.array([1 + 2j]), "complex", 1, order=3, fingerprint=0, device="cuda:1", **placed))
    cut, data = kept(np.arange(2, dtype=np.float32), "cut", 1, order=4, shape=(6,), kept="[0:2]", kept_fingerprint=None)
    writer.add(cut, data)
    writer.close(receipt())


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(writer_module, "HEADER_BYTES", (500, 500))
    write(tmp_path / "run")
    return tmp_path / "run"


def test_run_json_to_the_byte(written: Path) -> None:
    assert (written / "run.json").read_text("utf-8") == (GOLDEN / "run.json").read_text("utf-8")


def test_tensors_to_the_byte(written: Path) -> None:
    name = f"tensors/{STEM}.safetensors"
    assert (written / name).read_bytes() == (GOLDEN / name).read_bytes()


def test_records_to_the_byte_or_to_the_value(written: Path) -> None:
    name = f"records/{STEM}.parquet"
    new, old = (pq.ParquetFile(folder / name) for folder in (written, GOLDEN))
    assert new.schema_arrow.equals(old.schema_arrow, check_metadata=True)
    assert new.schema.equals(old.schema)
    # NaN is no equal of itself, so the texts are compared.
    assert str(new.read().to_pylist()) == str(old.read().to_pylist())
    for i in range(new.metadata.num_columns):
        new_column, old_column = (file.metadata.row_group(0).column(i) for file in (new, old))
        assert (new_column.compression, new_column.encodings) == (old_column.compression, old_column.encodings)
    # The bytes are pyarrow's choice and change with its versions.
    if new.metadata.created_by == old.metadata.created_by:
        assert (written / name).read_bytes() == (GOLDEN / name).read_bytes()


def test_the_golden_run_is_read_right() -> None:
    run = Run(GOLDEN)
    assert (run.partial, run.info["floor"], run.receipt) == (False, "Infinity", receipt())
    assert run.sites == ("odd", "größe:output.äh@2", "complex", "cut")
    assert run["odd"].numpy().tolist() == [0, 1, 2]
    assert (run["odd"].record.epoch, run["odd"].record.batch, run["odd"].record.phase) == (2, 3, "train")
    one, nan, infinite = run["größe:output.äh@2"].numpy()[0]
    assert (one, math.isnan(nan), infinite) == (1, True, -math.inf)
    assert run["complex"].numpy().tolist() == [1 + 2j]
    part = run["complex"].record
    assert (part.sharding, part.fingerprint_in_whole) == (SHARDING, 2**63)
    assert part.sketch_in_whole == np.arange(251, dtype="<f4").tobytes()[::-1]
    assert (run["odd"].record.fingerprint_in_whole, run["odd"].record.sketch_in_whole) == (None, None)
    assert run["cut"].record.kept_fingerprint == fingerprint_of(np.array([0, 0x3F800000], np.uint32))
    assert np.frombuffer(run["größe:output.äh@2"].record.sketch, "<f4")[250] == 250
    assert run.inputs[0].sketch == b""


def test_a_run_of_the_first_format_2_is_still_read() -> None:
    """Written before records said where their rank is in the mesh."""
    run = Run(Path(__file__).with_name("golden_v2"))
    assert (run.info["format"], run.partial, run.problems) == (2, False, ())
    assert run["complex"].numpy().tolist() == [1 + 2j]
    assert run["complex"].record.sharding == replace(SHARDING, mesh_coordinate=(), mesh_origin=-1)
    assert run.table().schema.equals(SCHEMA)
    assert run.table(["mesh_origin", "step"]).to_pylist()[1] == {"mesh_origin": -1, "step": 1}


def test_a_run_of_before_parts_had_sums_in_the_whole_is_still_read() -> None:
    """Written by the last layertap whose parts had no `fingerprint_in_whole` and `sketch_in_whole`."""
    run = Run(Path(__file__).with_name("golden_v2_mesh"))
    assert (run.info["format"], run.partial, run.problems) == (2, False, ())
    assert [run[site].numpy().size for site in run.sites] == [3, 3, 1, 2]
    part = run["complex"].record
    assert (part.sharding, part.fingerprint_in_whole, part.sketch_in_whole) == (SHARDING, None, None)
    assert run.table().schema.equals(SCHEMA)
    names = ["step", "fingerprint_in_whole", "sketch_in_whole"]
    assert run.table(names).to_pylist()[1] == {"step": 1, "fingerprint_in_whole": None, "sketch_in_whole": None}


def test_a_run_of_format_1_is_still_read() -> None:
    """Written by the last layertap that wrote format 1."""
    run = Run(Path(__file__).with_name("golden_v1"))
    assert (run.info["format"], run.partial, run.problems) == (1, False, ())
    assert run.sites == ("odd", "größe:output.äh@2", "complex", "cut")
    assert [run[site].numpy().size for site in run.sites] == [3, 3, 1, 2]
    assert run["complex"].numpy().tolist() == [1 + 2j]
    assert run["complex"].record.sharding == Sharding(placements=("(Shard(dim=0),)",))
    assert run["cut"].record.kept_fingerprint is None
    assert run.table().schema.equals(SCHEMA)
    assert run.table(["mesh_shape", "step"]).to_pylist()[1] == {"mesh_shape": [], "step": 1}
    assert {record.kept for record in run.records()} == {"stats", "tensor", "[0:2]"}


if __name__ == "__main__":
    writer_module.HEADER_BYTES = (500, 500)
    shutil.rmtree(GOLDEN, ignore_errors=True)
    write(GOLDEN)
