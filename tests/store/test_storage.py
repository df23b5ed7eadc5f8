"""Runs in object storage: a real S3 client (pyarrow's) against a server on loopback."""

from __future__ import annotations

import copy
import json
import mmap
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pyarrow import fs
from torch import nn

import layertap as lt
from layertap.errors import BadArgument, CorruptRun, NotARun, RunError, RunExists
from layertap.store import mirror
from layertap.store.mirror import Mirror
from layertap.store.remote_writer import RemoteWriter
from layertap.store.storage import Storage
from store.making import kept, receipt, record
from store.s3 import BUCKET, Server, running

pytestmark = pytest.mark.xdist_group("s3")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip(
        "moto", reason="object storage on this machine is moto's: pip install 'moto[s3]' flask flask-cors"
    )
    with running(tmp_path_factory.mktemp("s3") / "log") as found:
        yield found


@pytest.fixture
def url(server: Server, request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/runs/{request.node.name}"


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)]).eval().requires_grad_(False)


def recorded(path: str | Path, model: nn.Module, **options: object) -> lt.Run:
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    with lt.record(model, path, keep="tensor", **options) as recorder:
        for _ in range(3):
            model(x)
            recorder.step()
    assert recorder.receipt.complete
    assert recorder.receipt.records == 18
    return recorder.run


def names(url: str) -> list[str]:
    files, root = fs.FileSystem.from_uri(url)
    return sorted(
        item.path.removeprefix(f"{root}/")
        for item in files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        if item.type == fs.FileType.File
    )


def test_a_run_in_storage_is_the_run_that_a_folder_would_hold(url: str, tmp_path: Path) -> None:
    there, here = recorded(url, net()), recorded(tmp_path / "run", net())
    assert (there.name, there.problems) == (url, ())
    assert [str(site) for site in there.sites] == [str(site) for site in here.sites]
    for site in here.sites:
        for step in range(3):
            assert torch.equal(there[site].at(step=step).tensor(), here[site].at(step=step).tensor())
    assert lt.diff(url, tmp_path / "run").verdict == "identical"
    found = names(url)
    assert [name.partition("/")[0] for name in found] == ["records", "run.json", "tensors"]
    assert not [name for name in found if "/." in name or name.endswith((".tmp", ".part"))]


def test_a_fault_between_two_runs_in_storage_is_named(url: str) -> None:
    broken = net()
    broken[2].weight[3] = 0
    recorded(f"{url}/a", net())
    recorded(f"{url}/b", broken)
    report = lt.diff(f"{url}/a", f"{url}/b")
    assert (report.verdict, str(report.first.site)) == ("fault", "2")


def test_a_large_tensor_is_in_a_map_and_not_in_memory(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(f"{url}/a", net())
    expected = lt.Run(f"{url}/a")["2"].at(step=1).tensor()
    monkeypatch.setattr(mirror, "IN_MEMORY", 100)
    run = lt.Run(f"{url}/a")
    raw = run.kept_bytes(run["2"].at(step=1).record)
    assert isinstance(raw.base.obj, mmap.mmap)  # type: ignore[union-attr]
    assert torch.equal(run["2"].at(step=1).tensor(), expected)
    assert lt.diff(f"{url}/a", run).verdict == "identical"


def test_only_the_asked_tensor_is_read(url: str) -> None:
    recorded(url, net())
    run = lt.Run(url)
    read: list[tuple[str, int]] = []
    storage = run._mirror.storage
    before = storage.read
    storage.read = lambda name, begin, end: read.append((name, end - begin)) or before(name, begin, end)  # type: ignore[method-assign]
    run["2"].at(step=1).tensor()
    assert [size for _, size in read][-1] == 3 * 16 * 4
    assert len(read) == 2  # the header, and the tensor
    run["3"].at(step=1).tensor()
    assert len(read) == 3


def test_a_run_is_not_written_over_and_can_be_continued_or_replaced(url: str) -> None:
    recorded(url, net())
    with pytest.raises(RunExists, match="exists='append'"):
        recorded(url, net())
    with lt.record(net(), url, exists="append", keep="tensor") as recorder:
        recorder.model(torch.randn(3, 16))
    assert lt.Run(url).count == 24
    assert len(lt.Run(url).sessions) == 2
    recorded(url, net(), exists="replace")
    assert (lt.Run(url).count, len(lt.Run(url).sessions)) == (18, 1)


def test_a_shard_is_there_when_its_parquet_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that dies between the two leaves tensors that no reader sees."""
    writer = RemoteWriter(url, info={"model": "Net"})
    array = torch.arange(8.0).numpy()
    writer.add(*kept(array, step=0))
    writer.commit()
    put: list[str] = []
    real = Storage.put_new

    def dies(self: Storage, file: Path, name: str) -> None:
        put.append(name)
        if name.endswith(".parquet"):
            raise KeyboardInterrupt
        real(self, file, name)

    monkeypatch.setattr(Storage, "put_new", dies)
    writer.add(*kept(array + 1, step=1))
    with pytest.raises(KeyboardInterrupt):
        writer.commit()
    assert [name.partition("/")[0] for name in put] == ["tensors", "records"]
    run = lt.Run(url)
    assert [row.step for row in run.records()] == [0]
    assert run.partial  # its session was never closed
    assert torch.equal(run["layers.0"].tensor(), torch.arange(8.0))
    monkeypatch.undo()
    with lt.record(net(), url, exists="append", keep="tensor") as recorder:
        recorder.model(torch.randn(3, 16))
    assert lt.Run(url).count == 7


def test_what_cannot_be_put_is_tried_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RemoteWriter(url, info={})
    failures = iter([OSError("no route"), OSError("no route")])
    real = Storage.put_new

    def flaky(self: Storage, file: Path, name: str) -> None:
        error = next(failures, None)
        if error is not None:
            raise error
        real(self, file, name)

    monkeypatch.setattr(Storage, "put_new", flaky)
    for step in range(3):
        writer.add(*kept(torch.full((4,), float(step)).numpy(), step=step))
        writer.commit()
    assert [row.step for row in lt.Run(url).records()] == [0, 1, 2]
    writer.settle()
    writer.close(receipt())
    assert (writer.records, writer.lost, writer.problems) == (3, 0, [])
    assert not writer.path.exists()


def test_what_cannot_be_put_at_all_stays_here_and_is_counted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: Storage, file: Path, name: str) -> None:
        raise RunError("no room in the bucket")

    with lt.record(net(), url, keep="tensor") as recorder:
        recorder.model(torch.randn(3, 16))
        monkeypatch.setattr(Storage, "put_new", refuses)
    assert (recorder.receipt.lost, recorder.receipt.complete) == (6, False)
    problem = " ".join(lt.Run(url).problems)
    folder = recorder._writer.path
    assert str(folder) in problem
    assert lt.Run(folder).count == 6
    monkeypatch.undo()
    storage = Storage(url)  # what the message says: the files can be copied there
    for below in ("tensors", "records"):
        for file in (folder / below).iterdir():
            storage.put_new(file, f"{below}/{file.name}")
    assert lt.Run(url).count == 6


def test_a_bad_byte_is_found(url: str) -> None:
    recorded(url, net())
    files, root = fs.FileSystem.from_uri(url)
    (name,) = [name for name in names(url) if name.startswith("tensors/")]
    with files.open_input_stream(f"{root}/{name}") as stream:
        data = bytearray(stream.read())
    data[-1] ^= 1
    with files.open_output_stream(f"{root}/{name}") as stream:
        stream.write(bytes(data))
    run = lt.Run(url)
    with pytest.raises(CorruptRun, match="damaged: its bytes have fingerprint"):
        for site in run.sites:
            for item in run[site]:
                run.kept_bytes(item)


def test_a_lost_tensor_file_makes_a_run_partial(url: str) -> None:
    recorded(url, net())
    (name,) = [name for name in names(url) if name.startswith("tensors/")]
    Storage(url).delete(name)
    assert lt.Run(url).partial
    with pytest.raises(CorruptRun, match="missing"):
        lt.Run(url)["1"].at(step=0).tensor()


def test_ranks_write_into_one_run(url: str) -> None:
    for rank in range(2):
        writer = RemoteWriter(url, info={"world_size": 2}, rank=rank)
        writer.add(*kept(torch.full((2,), float(rank)).numpy(), rank=rank))
        writer.settle()
        writer.close(receipt())
    run = lt.Run(url)
    assert [(row.rank, run[row.site].at(rank=row.rank).tensor()[0].item()) for row in run.records()] == [(0, 0), (1, 1)]
    assert [name for name in names(url) if "/" not in name] == ["run.1.json", "run.json"]


def test_parquet_files_are_copied_once(url: str) -> None:
    writer = RemoteWriter(url, info={})
    writer.add(record(step=0))
    writer.commit()
    mirror = Mirror(url)
    mirror.refresh()
    copied: list[str] = []
    get = mirror.storage.get
    mirror.storage.get = lambda name, file: copied.append(name) or get(name, file)  # type: ignore[method-assign]
    writer.add(record(step=1))
    writer.commit()
    mirror.refresh()
    assert sorted(name.partition("/")[0] for name in copied) == ["records", "run.json"]
    assert len(list((mirror.folder / "records").iterdir())) == 2


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_what_it_had_put(url: str) -> None:
    script = f"""
import torch, time
import layertap.store.writer as writer
writer.SHARD_SECONDS = (0.0, 0.0)
import layertap as lt
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)]).requires_grad_(False)
with lt.record(model, {url!r}, keep="tensor") as recorder:
    for step in range(10_000):
        model(torch.full((3, 16), float(step)))
        recorder.step()
        recorder.flush()
        print(step, flush=True)
"""
    said = 0
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said = int(line)
            if said >= 5:
                break
        process.send_signal(signal.SIGKILL)
    run = lt.Run(url)
    steps = {row.step for row in run.records()}
    assert set(range(said + 1)) <= steps
    for site in run.sites:
        for item in run[site]:
            run.kept_bytes(item)
    assert run.partial


@pytest.mark.slow
def test_diff_and_show_take_urls(url: str, server: Server, tmp_path: Path) -> None:
    recorded(url, net())
    recorded(tmp_path / "run", net())
    script = [sys.executable, "-m", "layertap"]
    done = subprocess.run(
        [*script, "diff", url, str(tmp_path / "run"), "--json"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "identical")
    shown = subprocess.run([*script, "show", url, "--json"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["run"] == url


def test_errors_name_the_url_and_the_way_out(url: str, tmp_path: Path) -> None:
    with pytest.raises(NotARun, match=f"{url}: no run here"):
        lt.Run(url)
    with pytest.raises(BadArgument, match="takes a folder, or a URL of s3, gs"):
        lt.Run("ftp://host/run")
    model = net()
    with (
        pytest.raises(BadArgument, match="watch needs a folder of this machine"),
        lt.watch(model, path=url, strict=True),
    ):
        pass
    with pytest.raises(BadArgument, match="Monitor needs a folder of this machine"):
        lt.Monitor(model, ["0"], epochs_to_record=[1], output_dir=url, batch_indices=[0])
    with pytest.raises(BadArgument, match="sweep needs a folder of this machine"):
        lt.sweep({"target": "net.py:make", "modes": {"a": {}, "b": {}}, "reference": "a"}, url)


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(RunError, match=r"s3://bucket/x: the storage does not answer"):
        lt.Run("s3://bucket/x")
    with (
        pytest.raises(RunError, match=r"s3://bucket/x: the storage does not answer"),
        lt.record(net(), "s3://bucket/x"),
    ):
        pass
    assert time.monotonic() - began < 60


def test_a_copy_of_a_model_is_unchanged_by_recording_to_storage(url: str) -> None:
    model = net()
    twin = copy.deepcopy(model)
    recorded(url, model)
    x = torch.randn(2, 16)
    assert torch.equal(model(x), twin(x))
    assert type(model[0]) is nn.Linear
