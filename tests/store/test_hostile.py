"""Broken and hostile folders: one clear error that names the file, the rest stays readable, and no code is run."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import layertap.store.runfile as runfile_module
from layertap.errors import CorruptRun, LayertapError, NewerFormat, NotARun
from layertap.store import Run, RunWriter
from layertap.store.schema import FORMAT_KEY, SCHEMA
from store.making import kept, record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards, each with a tensor of its own site."""
    writer = RunWriter(tmp_path / "run", info={})
    for name in ("first", "second"):
        writer.add(*kept(np.arange(6.0).reshape(2, 3), name))
        writer.add(record(f"{name}.stats"))
        writer.commit()
    writer.close()
    return tmp_path / "run"


def shard(folder: Path, kind: str, number: int = 0) -> Path:
    return sorted((folder / ("records" if kind == "parquet" else "tensors")).glob(f"*.{kind}"))[number]


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["BOMB"],)


@pytest.fixture
def bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    return pickle.dumps(Bomb())


def header(text: bytes, length: int | None = None, data: bytes = bytes(48)) -> bytes:
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(**changed: Any) -> bytes:
    value = {"dtype": "F64", "shape": [2, 3], "data_offsets": [0, 48], **changed}
    return json.dumps({"0/first": value}).encode()


OTHER = b'{"dtype": "F64", "shape": [3], "data_offsets": [24, 48]}'

TENSOR_FILES: dict[str, tuple[bytes | Callable[[bytes], bytes], str]] = {
    "empty": (b"", "a header of 0 bytes in a file of 0"),
    "truncated": (lambda old: old[:-5], "tensors end at byte"),
    "truncated in the header": (lambda old: old[:100], "truncated, or not safetensors"),
    "longer": (lambda old: old + b"x", "tensors end at byte"),
    "huge header": (header(b"{}", 2**63), "a header of 9223372036854775808 bytes in a file of"),
    "not JSON": (header(b"{'a': 1}"), "the header is not JSON"),
    "a list": (header(b"[1, 2]"), "the header is not JSON"),
    "deep": (header(b'{"a":' + b"[" * 200_000), "the header is not JSON"),
    "duplicate": (header(entry()[:-1] + b"," + entry()[1:]), "the header is not JSON"),
    "no entry": (header(b"{}", data=b""), "no tensor '0/first', which is that of first at step 0"),
    "entry no object": (header(b'{"0/first": 7}'), "tensor '0/first' has a malformed header entry"),
    "negative": (header(entry(data_offsets=[-48, 0])), "malformed header entry"),
    "fraction": (header(entry(data_offsets=[0, 48.0])), "malformed header entry"),
    "unknown dtype": (header(entry(dtype="PICKLE")), "malformed header entry"),
    "beyond the end": (header(entry(data_offsets=[0, 48000], shape=[6000])), "tensors end at byte"),
    "gap": (header(entry(data_offsets=[8, 48], shape=[5])), "begins at 8, expected 0"),
    "wrong size": (header(entry(shape=[2, 2])), r"of F64 \[2, 2\] has data_offsets \[0, 48\]"),
    "overlap": (header(entry()[:-1] + b',"b":' + OTHER + b"}"), "begins at 24, expected 48"),
    "other dtype": (
        header(entry(dtype="I64")),
        r"is I64 \[2, 3\], expected float64 \[2, 3\] by the record of first at step 0",
    ),
    "other shape": (
        header(entry(shape=[3, 2])),
        r"is F64 \[3, 2\], expected float64 \[2, 3\] by the record of first at step 0",
    ),
}


@pytest.mark.parametrize("case", TENSOR_FILES)
def test_a_broken_tensor_file_is_named_when_its_tensor_is_read(folder: Path, case: str) -> None:
    content, text = TENSOR_FILES[case]
    file = shard(folder, "safetensors")
    file.write_bytes(content(file.read_bytes()) if callable(content) else content)
    run = Run(folder)
    assert run["first"].record.kept == "tensor"
    for read in (run["first"].tensor, run["first"].numpy):
        with pytest.raises(CorruptRun, match=text) as caught:
            read()
        assert f"tensors/{file.name}: " in str(caught.value)
        assert "\n" not in str(caught.value)
    assert run["second"].tensor().shape == (2, 3)


def test_a_pickle_is_not_run(folder: Path, bomb: bytes, tmp_path: Path) -> None:
    shard(folder, "safetensors").write_bytes(bomb)
    shard(folder, "parquet", 1).write_bytes(bomb)
    (folder / "run.1.json").write_bytes(bomb)
    run = Run(folder)
    with pytest.raises(CorruptRun):
        run["first"].tensor()
    assert len(run.problems) == 2
    assert run.table().num_rows == 2
    assert not (tmp_path / "exploded").exists()
    pickle.loads(bomb)
    assert (tmp_path / "exploded").exists(), "the bomb is a dud, so this test proves nothing"


def test_a_missing_tensor_file(folder: Path) -> None:
    shard(folder, "safetensors").unlink()
    with pytest.raises(CorruptRun, match=r"tensors/0-.*-000000\.safetensors: missing"):
        Run(folder)["first"].tensor()


def rewrite(file: Path, change: Callable[[Any], Any]) -> None:
    pq.write_table(change(pq.read_table(file)), file)


def with_format(version: bytes) -> Callable[[Any], Any]:
    return lambda table: table.replace_schema_metadata({FORMAT_KEY: version})


def with_column(name: str, values: list[Any], kind: Any) -> Callable[[Any], Any]:
    return lambda table: table.set_column(table.column_names.index(name), pa.field(name, kind), pa.array(values, kind))


PARQUET: dict[str, tuple[bytes | Callable[[Any], Any], str]] = {
    "empty": (b"", r"damaged, or not parquet \("),
    "wrong magic": (b"PAR2" * 50, r"damaged, or not parquet \("),
    "huge footer": (b"PAR1" + bytes(20) + b"\xff\xff\xff\x7fPAR1", r"damaged, or not parquet \("),
    "no format": (lambda table: table.replace_schema_metadata({}), "no layertap format in its metadata"),
    "format no number": (with_format(b"one"), "no layertap format in its metadata"),
    "newer": (with_format(b"7"), "written in format 7; this layertap reads up to 2. Upgrade it"),
    "missing column": (lambda table: table.drop_columns(["step"]), "column 'step' is missing"),
    "mistyped column": (with_column("step", ["0", "0"], pa.string()), "column 'step' is string, expected int64"),
    "empty values": (with_column("step", [0, None], pa.int64()), "column 'step' has empty values"),
    "no site": (with_column("site", ["a", "b:nonsense"], pa.string()), "'b:nonsense' is not a site"),
}


@pytest.mark.parametrize("case", PARQUET)
def test_a_broken_parquet_file_is_left_out_and_told(folder: Path, case: str) -> None:
    content, text = PARQUET[case]
    file = shard(folder, "parquet")
    rewrite(file, content) if callable(content) else file.write_bytes(content)
    run = Run(folder)
    assert run.sites == ("second", "second.stats")
    assert run["second"].tensor().shape == (2, 3)
    assert [str(row.site) for row in run.records()][-2:] == ["second", "second.stats"]
    assert run.partial
    (problem,) = run.problems
    assert re.search(text, problem), problem
    assert f"records/{file.name}: " in problem


def test_a_truncated_parquet_file(folder: Path) -> None:
    file = shard(folder, "parquet")
    file.write_bytes(file.read_bytes()[:-20])
    assert Run(folder).sites == ("second", "second.stats")


def test_a_changed_byte_in_a_column_is_noticed(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, info={})
    writer.add(record("changed", order=0x0102030405060708))  # bytes that zstd stores as they are
    writer.commit()
    writer.add(record("whole"))
    writer.close()
    file = shard(tmp_path, "parquet")
    content = file.read_bytes()
    column = pq.read_metadata(file).row_group(0).column(SCHEMA.names.index("order"))
    assert column.path_in_schema == "order"
    end = column.data_page_offset + column.total_compressed_size
    place = content.rindex(bytes(range(8, 0, -1)), column.data_page_offset, end)
    file.write_bytes(content[:place] + b"\x09" + content[place + 1 :])
    run = Run(tmp_path)
    assert run.sites == ("whole",)
    assert "damaged" in run.problems[0]


def test_nulls_inside_lists_are_noticed(folder: Path) -> None:
    rewrite(shard(folder, "parquet"), with_column("kept_shape", [[2, None], []], pa.list_(pa.int64())))
    run = Run(folder)
    with pytest.raises(CorruptRun, match="column 'kept_shape' has empty values"):
        run["first"].tensor()
    assert len(list(run.records())) == 2


@pytest.mark.parametrize("name", ["../../secret.safetensors", "/etc/passwd", "..", "a/b.safetensors", "\0.safetensors"])
def test_a_record_cannot_name_a_file_elsewhere(folder: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(shard(folder, "safetensors"), tmp_path / "secret.safetensors")
    rewrite(shard(folder, "parquet"), with_column("file", [name, ""], pa.string()))
    with pytest.raises(CorruptRun, match="which is not a plain file name"):
        Run(folder)["first"].tensor()


@pytest.mark.parametrize("kind", ["safetensors", "parquet", "json"])
def test_links_out_of_the_folder_are_not_followed(folder: Path, tmp_path: Path, kind: str) -> None:
    file = folder / "run.1.json" if kind == "json" else shard(folder, kind)
    if kind == "json":
        shutil.copy(folder / "run.json", file)
    file.rename(tmp_path / "outside")
    file.symlink_to(tmp_path / "outside")
    run = Run(folder)
    if kind == "safetensors":
        with pytest.raises(CorruptRun, match="outside of the run's folder; it is not followed"):
            run["first"].tensor()
    else:
        assert "outside of the run's folder; it is not followed" in run.problems[0]


@pytest.mark.parametrize("kind", ["safetensors", "parquet"])
def test_what_is_no_regular_file_is_not_opened(folder: Path, kind: str) -> None:
    file = shard(folder, kind)
    file.unlink()
    os.mkfifo(file)  # opening it for reading would wait for ever
    run = Run(folder)
    if kind == "safetensors":
        with pytest.raises(CorruptRun, match="not a regular file"):
            run["first"].tensor()
    else:
        assert "not a regular file" in run.problems[0]


RUN_FILES = {
    "empty": (b"", "not JSON"),
    "not JSON": (b"{'a'}", "not JSON"),
    "not UTF-8": (b'{"a": "\xff"}', "not JSON"),
    "deep": (b"[" * 200_000, "not JSON"),
    "long number": (b'{"format": ' + b"9" * 10_000 + b"}", "not JSON"),
    "a list": (b"[]", "expected a JSON object with a whole number as 'format'"),
    "no format": (b"{}", "expected a JSON object with a whole number as 'format'"),
    "format true": (b'{"format": true}', "expected a JSON object with a whole number as 'format'"),
    "sessions": (b'{"format": 1, "sessions": [3]}', "'sessions' is not a list of objects"),
    "huge": (b" " * 2000, "larger than 1000 bytes"),
}


@pytest.mark.parametrize("case", RUN_FILES)
def test_a_broken_run_json(folder: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    content, text = RUN_FILES[case]
    if case == "huge":
        monkeypatch.setattr(runfile_module, "MAX_BYTES", 1000)
    (folder / "run.json").write_bytes(content)
    run = Run(folder)
    (problem,) = run.problems
    assert problem.startswith(f"{folder}/run.json: ")
    assert text in problem
    assert problem.endswith("; the records are readable")
    assert run["first"].numpy().shape == (2, 3)
    assert (run.partial, run.info, run.receipt) == (True, {}, None)
    (folder / "run.json").write_text('{"format": 1, "status": "complete"}')
    (folder / "run.1.json").write_bytes(content)
    assert text in Run(folder).problems[0]


def test_a_newer_format_says_both_versions(folder: Path) -> None:
    (folder / "run.json").write_text('{"format": 12}')
    with pytest.raises(NewerFormat) as caught:
        Run(folder)
    assert str(caught.value) == (
        f"{folder}/run.json: written in format 12; this layertap reads up to 2. Upgrade it: pip install -U layertap"
    )


def test_without_run_json_the_records_are_readable(folder: Path) -> None:
    (folder / "run.json").unlink()
    run = Run(folder)
    assert run["first"].numpy().shape == (2, 3)
    assert run.partial
    assert "run.json: missing" in run.problems[0]
    assert (run.info, run.receipt) == ({}, None)


def test_a_receipt_that_is_none(folder: Path) -> None:
    (folder / "run.json").write_text('{"format": 1, "status": "complete", "receipt": {"sites": 3}}')
    run = Run(folder)
    assert run.sites
    with pytest.raises(CorruptRun, match=r"the receipt in run\.json is damaged"):
        _ = run.receipt


def test_an_empty_records_folder_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    with pytest.raises(NotARun):
        Run(tmp_path)


def test_random_damage_never_surfaces_as_anything_but_our_errors(folder: Path, tmp_path: Path) -> None:
    chance = random.Random(0)
    files = [folder / "run.json", shard(folder, "parquet"), shard(folder, "safetensors")]
    whole = {file: file.read_bytes() for file in files}
    noticed = 0
    for _ in range(300):
        file = chance.choice(files)
        content = bytearray(whole[file])
        for _ in range(chance.choice([1, 1, 3, 30])):
            end = len(content) if chance.random() < 0.5 else min(400, len(content))
            content[chance.randrange(end)] = chance.randrange(256)
        if chance.random() < 0.2:
            del content[chance.randrange(len(content)) :]
        file.write_bytes(content)
        try:
            run = Run(folder)
            str(run), run.table(), list(run.records()), run.receipt, run.inputs
            noticed += run.partial
            run["first"].numpy()
        except LayertapError:
            noticed += 1
        file.write_bytes(whole[file])
    assert noticed > 100
    assert not Run(folder).partial
    assert set(SCHEMA.names) == set(Run(folder).table().column_names)
