"""Files that would never end, never answer, or fill the memory: refused with a message that says how to allow it."""

import io
import json
import os
import socket
import struct
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from layertap.compare.align.mapping import read_rules
from layertap.errors import CorruptRun, LayertapError
from layertap.files import MAX_UNPACKED, open_regular, parse_json, read_bytes
from layertap.formats import open_run, read_layers, read_npz
from layertap.store import Run, RunWriter
from layertap.store.layout import Layout
from layertap.store.runfile import read_run_file
from layertap.store.schema import SCHEMA, to_table
from layertap.testing import load_golden
from layertap.watching.config import read_config
from layertap.watching.trigger_report import read_reports
from store.making import kept, record

MIB = 1 << 20


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one record that keeps its tensor."""
    writer = RunWriter(tmp_path / "run", info={})
    writer.add(*kept(np.arange(6, dtype=np.float32)))
    writer.close()
    return tmp_path / "run"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def endless(path: Path) -> None:
    path.symlink_to(path.name)


def sock(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's name may have 100 characters
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def folder(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


STRANGE = [pipe, device, endless, sock, folder]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [*STRANGE, sparse])
def test_what_is_no_regular_file_is_never_waited_on(run: Path, tmp_path: Path, make) -> None:
    """Each reader of the package, each kind of thing that is no file; nothing may hang, all say which file it is."""
    cases = {
        "golden.layertap": load_golden,
        "mapping.json": read_rules,
        "mapping.toml": read_rules,
        "watch.toml": read_config,
        "io.npz": open_run,
        "layers/layer_1_output.pt": lambda path: read_layers(path.parent),
        "layers/metadata.pt": lambda path: read_layers(path.parent),
        "run/run.json": lambda path: read_run_file(path, str(path)),
        "run/triggers/1.json": lambda path: read_reports(path.parent.parent),
        "a.layout.json": Layout.load,
    }
    (tmp_path / "layers").mkdir()
    (run / "triggers").mkdir()
    for name, read in cases.items():
        path = tmp_path / name
        path.unlink(missing_ok=True)
        make(path)
        with pytest.raises(LayertapError) as told:
            read(path)
        assert path.name in str(told.value) or path.parent.name in str(told.value), name
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", ["records", "tensors"])
@pytest.mark.parametrize("make", STRANGE)
def test_a_runs_own_files_are_regular(run: Path, make, part: str) -> None:
    path = next((run / part).iterdir())
    path.unlink()
    make(path)
    opened = Run(run)
    if part == "records":
        assert path.name in opened.problems[0]
    else:
        with pytest.raises(CorruptRun, match=path.name):
            opened["layers.0"].tensor()


def test_open_regular_never_waits(tmp_path: Path) -> None:
    pipe(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "pipe")
    sparse(tmp_path / "sparse")
    with pytest.raises(OSError, match="larger than 1000 bytes"):
        read_bytes(tmp_path / "sparse", 1000)


# Bombs. Each is measured in a process of its own: what it had in memory at most must stay below the bound.


def peak(code: str, most: int = 700) -> str:
    """What the code prints; fails when it needed more MiB than `most`, of which torch takes 350."""
    told = "\nprint(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    head = "from layertap.errors import LayertapError\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code) + told],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, MAX_UNPACKED: "100MiB"},
    )
    assert done.returncode == 0, done.stderr
    *lines, memory = done.stdout.splitlines()
    assert int(memory) < most * 1024, f"{int(memory) >> 10} MiB"
    return "\n".join(lines)


def test_a_small_npz_of_gigabytes(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w") as out,
    ):
        np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": (128 * MIB,)})
        for _ in range(128):
            out.write(bytes(4 * MIB))
    said = peak(f"""
        from layertap.formats import read_npz
        try:
            read_npz({str(tmp_path / "x.npz")!r})
        except LayertapError as error:
            print(error)
    """)
    assert MAX_UNPACKED in said
    assert "a" in said


def test_an_npz_that_promises_more_than_it_has(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(64))
        good = io.BytesIO()
        np.save(good, np.arange(3.0))
        archive.writestr("b.npy", good.getvalue())
    opened = read_npz(tmp_path / "x.npz")
    assert [str(site) for site in opened.sites] == ["b"], "the others are not lost with it"
    assert MAX_UNPACKED in opened.problems[0] or "64 bytes" in opened.problems[0]


def test_an_npz_member_with_a_changed_byte_is_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(1000.0), b=np.arange(3.0))
    raw = bytearray((tmp_path / "x.npz").read_bytes())
    raw[600] ^= 1
    (tmp_path / "x.npz").write_bytes(raw)
    assert "CRC" in read_npz(tmp_path / "x.npz").problems[0]


def test_a_pt_that_repeats_one_element(tmp_path: Path) -> None:
    torch.save(torch.zeros(1).expand(10**6, 10**6), tmp_path / "layer_1_output.pt")
    torch.save(torch.ones(1).expand(1000, 50), tmp_path / "layer_2_output.pt")
    said = peak(f"""
        from layertap.formats import open_run
        run = open_run({str(tmp_path)!r})
        print(run.problems[0], [str(site) for site in run.sites])
    """)
    assert "[1000000, 1000000] over a small storage" in said
    assert MAX_UNPACKED in said
    assert "['layer_2']" in said, "a mask that is expanded is read as before"


def test_a_compressed_pt(tmp_path: Path) -> None:
    torch.save(torch.zeros(40 * MIB), tmp_path / "stored.pt")
    with (
        zipfile.ZipFile(tmp_path / "stored.pt") as stored,
        zipfile.ZipFile(tmp_path / "layer_1_output.pt", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
    ):
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    (tmp_path / "stored.pt").unlink()
    said = peak(f"""
        from layertap.formats import open_run
        try:
            open_run({str(tmp_path)!r})
        except LayertapError as error:
            print(error)
    """)
    assert MAX_UNPACKED in said


def test_a_pt_of_lists_in_lists(tmp_path: Path) -> None:
    nested: object = None
    for _ in range(7):
        nested = [nested] * 100
    torch.save((torch.ones(2), nested), tmp_path / "layer_1_output.pt")
    with pytest.raises(CorruptRun, match="more than 10000 nested values"):
        read_layers(tmp_path)


def parquet(run: Path, rows: int, **columns: object) -> Path:
    """The run's Parquet file with one record many times; the columns given contain one text in every row."""
    path = next((run / "records").iterdir())
    table = to_table([(record(), 0)]).take(pa.array(np.zeros(rows, np.int32)))
    for name, value in columns.items():
        place = table.column_names.index(name)
        kind = SCHEMA.field(name).type
        plain = kind.value_type if pa.types.is_list(kind) else kind
        made = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value], plain))
        if pa.types.is_list(kind):
            made = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32)), made)
        table = table.set_column(place, name, made)
    with pq.ParquetWriter(path, table.schema, compression="zstd", write_page_checksum=True, store_schema=False) as file:
        file.write_table(table)
        file.add_key_value_metadata(SCHEMA.metadata)
    return path


@pytest.mark.parametrize(
    ("rows", "column", "value"),
    [
        (50_000, "device", "x" * 4000),
        (200_000, "sketch", b"x" * 1004),
        (50_000, "placements", "x" * 4000),
        (500_000, "device", ""),
    ],
)
def test_a_text_that_stands_in_every_row(run: Path, rows: int, column: str, value: object) -> None:
    path = parquet(run, rows, **{column: value})
    assert path.stat().st_size < MIB
    said = peak(f"""
        from layertap import Run
        run = Run({str(run)!r})
        print(run.table([{column!r}]).num_rows, sum(1 for _ in run.records()), run.problems)
    """)
    # Records share the one text, so they need no room for it; a column of a table holds it in every row.
    assert said.startswith("0 50000" if column == "device" and value else "0 0")
    assert MAX_UNPACKED in said
    assert path.name in said


@pytest.mark.parametrize(
    "text", ["[" + "[]," * 20_000_000 + "[]]", '{"format": 2, "x": [' + "{}," * 15_000_000 + "{}]}", "[" * 1_000_000]
)
def test_a_run_json_of_empty_lists(run: Path, text: str) -> None:
    (run / "run.json").write_text(text)
    said = peak(f"""
        from layertap import Run
        try:
            print(Run({str(run)!r}).problems)
        except LayertapError as error:
            print(error)
    """)
    assert "run.json" in said


def test_a_header_of_empty_lists(run: Path) -> None:
    path = next((run / "tensors").iterdir())
    header = b'{"x":[' + b"[]," * 4_000_000 + b"[]]}"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    said = peak(f"""
        from layertap import Run
        try:
            Run({str(run)!r})["layers.0"].tensor()
        except LayertapError as error:
            print(error)
    """)
    assert path.name in said


def test_the_bound_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(4 * MIB))
    monkeypatch.setenv(MAX_UNPACKED, "1MiB")
    with pytest.raises(CorruptRun, match=f"set {MAX_UNPACKED}, for instance {MAX_UNPACKED}=1GiB"):
        read_npz(tmp_path / "x.npz")
    monkeypatch.setenv(MAX_UNPACKED, "1GiB")
    assert read_npz(tmp_path / "x.npz")["a"].numpy().size == 4 * MIB
    monkeypatch.setenv(MAX_UNPACKED, "plenty")
    with pytest.raises(LayertapError, match=f"^{MAX_UNPACKED}: 'plenty' is not a size"):
        read_npz(tmp_path / "x.npz")


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "NaN-", '{"a": ' * 5000])
def test_json_is_read_or_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    assert parse_json(json.dumps({"a": [1, 2]}).encode()) == {"a": [1, 2]}
