"""What is written is what is read: by layertap, by the safetensors library, by pyarrow and pandas."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from layertap.measure.fingerprint import fingerprint
from layertap.site import Record, Sharding, Site
from layertap.store import MemoryWriter, Run, RunWriter
from layertap.store.dtype import SAFETENSORS, SIZES
from store.making import kept, receipt, record, statistics

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

DTYPES = [dtype for dtype in sorted(SIZES) if hasattr(torch, dtype)]
SHAPES = [(3, 5), (), (0,), (2, 0, 3), (1,)]


def raw(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def example(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Every byte pattern comes, so NaN, infinities and subnormals too."""
    count = math.prod(shape)
    numbers = torch.arange(count * SIZES[dtype], dtype=torch.int64) * 89 + 120
    if dtype == "bool":
        return (numbers % 3 == 0).reshape(shape)
    if not count:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return (numbers % 256).to(torch.uint8).view(getattr(torch, dtype)).reshape(shape)


def put(writer: Any, tensor: torch.Tensor, **changed: Any) -> None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    given = {"kept": "tensor", "kept_shape": tuple(tensor.shape), "kept_dtype": dtype, "dtype": dtype}
    given |= {"kept_fingerprint": fingerprint(raw(tensor), dtype)}
    writer.add(record(**{**given, **changed}), raw(tensor))


@pytest.fixture(params=["disk", "memory"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return RunWriter(tmp_path / "run", info={}) if request.param == "disk" else MemoryWriter(info={})


def reopen(writer: Any) -> Run:
    return Run(writer if writer.path is None else writer.path)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_comes_back_to_the_bit(writer: Any, dtype: str) -> None:
    for step, shape in enumerate(SHAPES):
        # One odd byte in between, so that what follows is not aligned.
        put(writer, torch.zeros(1, dtype=torch.uint8), site="odd", step=step)
        put(writer, example(dtype, shape), step=step)
    writer.close()
    run = reopen(writer)
    for step, shape in enumerate(SHAPES):
        expected = example(dtype, shape)
        found = run["layers.0"].at(step=step).tensor()
        assert (found.dtype, tuple(found.shape)) == (expected.dtype, shape)
        assert raw(found).tobytes() == raw(expected).tobytes()
        assert found.data_ptr() % SIZES[dtype] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_reads_the_same_values_as_torch(writer: Any, dtype: str) -> None:
    every_byte = torch.arange(256, dtype=torch.int64).to(torch.uint8)
    tensor = every_byte > 7 if dtype == "bool" else every_byte.view(getattr(torch, dtype)).reshape(2, -1)
    put(writer, tensor)
    writer.close()
    found = reopen(writer)["layers.0"].numpy()
    if dtype == "complex32":
        parts = tensor.view(torch.float16).float()
        assert np.array_equal(found.view(np.float32), parts.numpy(), equal_nan=True)
        return
    wide = tensor.float() if dtype.startswith(("float8", "bfloat")) else tensor
    expected = wide.numpy()
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(found, expected, equal_nan=dtype.startswith(("float", "bfloat", "complex")))
    if dtype.startswith("float"):
        assert np.array_equal(np.signbit(found), np.signbit(expected)) or dtype.startswith("float8")


def test_the_safetensors_library_reads_the_files(tmp_path: Path) -> None:
    with_room = RunWriter(tmp_path / "run", info={})
    for dtype in DTYPES:
        put(with_room, example(dtype, (3, 5)), site=dtype)
    with_room.close()
    run = Run(tmp_path / "run")
    for row in run.records():
        with safe_open(tmp_path / "run" / "tensors" / row.file, "pt") as file:
            found = file.get_tensor(row.key)
        expected = example(row.site.path, (3, 5))
        assert raw(found).tobytes() == raw(expected).tobytes()
        if row.site.path in SAFETENSORS:
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        else:
            assert (found.dtype, found.ndim) == (torch.uint8, 1)


def test_plain_pyarrow_and_pandas_read_the_records(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", info={})
    writer.add(record("a", fingerprint=2**64 - 2, statistics=statistics(mean=math.nan, max=math.inf)))
    writer.add(*kept(np.ones((2, 3), np.float32), "b:output.1@2", step=1, epoch=3))
    writer.close()
    frame = pq.read_table(tmp_path / "run" / "records").to_pandas()
    assert list(frame["site"]) == ["a", "b:output.1@2"]
    assert list(frame["fingerprint"]) == [2**64 - 2, 2**64 - 1]
    assert math.isnan(frame["mean"][0])
    assert frame["max"][0] == frame["abs_max"][0] == math.inf
    row = frame.iloc[1]
    assert (row["path"], row["role"], row["leaf"], row["call"], row["nbytes"]) == ("b", "output", "1", 2, 24)
    assert (list(row["shape"]), row["epoch"]) == ([2, 3], 3)


numbers = st.floats(allow_nan=False)
texts = st.text(st.characters(codec="utf-8"), max_size=12)
records = st.builds(
    record,
    site=st.just("x"),
    step=st.integers(0, 2**62),
    order=st.integers(0, 2**62),
    epoch=st.none() | st.integers(0, 1000),
    batch=st.none() | st.integers(0, 1000),
    phase=st.sampled_from(["train", "eval"]),
    kind=texts,
    sharding=st.none()
    | st.builds(
        Sharding,
        placements=st.lists(texts, min_size=1, max_size=2).map(tuple),
        global_shape=st.lists(st.integers(0, 9), max_size=2).map(tuple),
        offset=st.lists(st.integers(0, 9), max_size=2).map(tuple),
        mesh_shape=st.lists(st.integers(0, 9), max_size=2).map(tuple),
        mesh_names=st.lists(texts, max_size=2).map(tuple),
    ),
    rank=st.integers(0, 2**31 - 1),
    shape=st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    fingerprint=st.integers(0, 2**64 - 1),
    sketch=st.sampled_from([b"", bytes(range(251)) * 4]),
    asked=st.booleans(),
    statistics=st.builds(
        statistics,
        count=st.integers(0, 2**62),
        mean=numbers,
        l2=numbers,
        first=st.lists(numbers, max_size=10).map(tuple),
    ),
)
sites = st.builds(
    Site, path=texts, role=st.sampled_from(["input", "output", "param_grad"]), leaf=texts, call=st.integers(0, 9)
)


@settings(max_examples=40, deadline=None)
@given(written=st.lists(st.builds(lambda row, site: replace(row, site=site), records, sites), max_size=8))
def test_any_record_comes_back_equal(tmp_path_factory: pytest.TempPathFactory, written: list[Record]) -> None:
    folder = tmp_path_factory.mktemp("property")
    writer = RunWriter(folder, info={})
    for number, row in enumerate(written):
        writer.add(row)
        if number % 3 == 2:
            writer.commit()
    writer.close()
    run = Run(folder)
    assert list(run.records()) == written
    assert set(run.sites) == {row.site for row in written if row.asked}


def test_one_key_twice_in_a_shard_is_told_apart(writer: Any) -> None:
    writer.add(*kept(np.array([1.0]), phase="train"))
    writer.add(*kept(np.array([2.0]), phase="eval", order=1))
    writer.close()
    found = reopen(writer)["layers.0"]
    assert [found.at(phase=phase).numpy().item() for phase in ("train", "eval")] == [1.0, 2.0]


def test_changing_a_tensor_changes_neither_the_run_nor_other_readers(writer: Any) -> None:
    writer.add(*kept(np.arange(4.0)))
    writer.close()
    run = reopen(writer)
    run["layers.0"].tensor().zero_()
    run["layers.0"].numpy()[:] = 7
    assert run["layers.0"].numpy().tolist() == [0, 1, 2, 3]
    assert reopen(writer)["layers.0"].tensor().tolist() == [0, 1, 2, 3]


def test_info_and_receipt_come_back(writer: Any) -> None:
    writer.add(record())
    writer.add(record(step=1))
    writer.close(receipt(), floor=math.nan, shape=(1, 2))
    run = reopen(writer)
    assert run.receipt == receipt()
    assert (run.info["floor"], run.info["shape"], run.info["status"]) == ("NaN", [1, 2], "complete")
    assert not run.partial
    assert run.problems == ()


def test_verify_tells_a_changed_byte(tmp_path: Path) -> None:
    from layertap.errors import CorruptRun, NoTensor
    from layertap.measure import measure

    tensor = torch.randn(4100, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    writer = RunWriter(tmp_path, info={})
    put(writer, tensor, fingerprint=measure(tensor).fingerprint)
    writer.add(record("stats"))
    writer.close()
    assert Run(tmp_path)["layers.0"].verify()
    with pytest.raises(NoTensor, match="only statistics were kept"):
        Run(tmp_path)["stats"].verify()
    (file,) = (tmp_path / "tensors").iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptRun, match=r"tensors/.*: the tensor of layers\.0 at step 0 is damaged: its bytes have"):
        Run(tmp_path)["layers.0"].verify()


def test_the_fingerprint_is_what_the_format_says(tmp_path: Path) -> None:
    """FORMAT.md alone, in Python's whole numbers, against what is recorded."""
    from layertap.measure import measure

    def mix(h: int) -> int:
        h ^= h >> 16
        h = h * 0x85EBCA6B % 2**32
        h ^= h >> 13
        h = h * 0xC2B2AE35 % 2**32
        return h ^ h >> 16

    for dtype in ("bfloat16", "float32", "complex64", "float64", "float8_e5m2"):
        tensor = example(dtype, (4100,))
        size = min(tensor.element_size() // (2 if tensor.is_complex() else 1), 4)
        content = raw(tensor).tobytes()
        total = 0
        for k in range(len(content) // size):
            word = int.from_bytes(content[k * size : (k + 1) * size], "little")
            row, lane = mix((k // 4016 + 0x9E3779B9) % 2**32) | 1, mix((k % 4016 + 0x3C6EF372) % 2**32) | 1
            total += row * lane % 2**32 * word
        assert measure(tensor).fingerprint == total % 2**64, dtype
