"""The golden file: small, the same bytes for the same run, and nothing in it is believed unseen."""

import base64
import hashlib
import json
import math

import pytest
import torch
from torch import nn

import layertap as lt
import models
from layertap.errors import BadArgument, CorruptRun, NewerFormat, NotARun, RunError
from layertap.testing import load_golden, save_golden


def recorded(model, inputs, **options):
    with lt.record(model, **options) as rec:
        models.run(model, inputs)
    return rec


@pytest.fixture
def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def golden(small, tmp_path):
    path = tmp_path / "small.layertap"
    save_golden(recorded(small, (torch.ones(2, 4),), sites="*"), path)
    return path


def test_sixty_two_layers_fit_into_200_kb(tmp_path):
    model, inputs = models.minimax_m2(layers=62)
    save_golden(recorded(model, inputs), tmp_path / "m2.layertap")
    assert len(load_golden(tmp_path / "m2.layertap").sites) == 65
    assert (tmp_path / "m2.layertap").stat().st_size < 200_000


def test_everything_but_the_tensors_comes_back(tmp_path):
    model, inputs = models.qwen3()
    rec = recorded(model, inputs, what=("input", "output"), keep="tensor")
    save_golden(rec, tmp_path / "a.layertap")
    loaded = load_golden(tmp_path / "a.layertap")
    assert not loaded.partial
    assert loaded.info["model"] == "Qwen3ForCausalLM"
    assert loaded.info["parameter_dtypes"] == ["float32"]
    before, after = list(rec.run.records()), list(loaded.records())
    assert len(before) == len(after)
    assert [record.site for record in rec.run.inputs] == [record.site for record in loaded.inputs]
    for a, b in zip(before, after, strict=True):
        for name in ("site", "kind", "order", "step", "epoch", "batch", "phase", "rank", "shape", "dtype", "device"):
            assert getattr(a, name) == getattr(b, name), name
        assert (a.statistics, a.fingerprint, a.sketch, a.asked) == (b.statistics, b.fingerprint, b.sketch, b.asked)
        assert (b.kept, b.file) == ("stats", "")


def test_a_run_on_disk_a_recorder_and_a_golden_give_the_same_bytes(small, tmp_path):
    rec = recorded(small, (torch.ones(2, 4),), path=tmp_path / "run", sites="*")
    for name, source in (("a", rec), ("b", rec.run), ("c", tmp_path / "run"), ("d", tmp_path / "a.layertap")):
        save_golden(source, tmp_path / f"{name}.layertap")
    assert len({path.read_bytes() for path in tmp_path.glob("*.layertap")}) == 1


def test_recording_again_gives_the_same_bytes(small, golden, tmp_path):
    save_golden(recorded(small, (torch.ones(2, 4),), sites="*"), tmp_path / "again.layertap")
    assert (tmp_path / "again.layertap").read_bytes() == golden.read_bytes()


def test_not_a_time_nor_a_path_is_in_it(golden, tmp_path):
    text = golden.read_text()
    assert str(tmp_path) not in text
    assert set(json.loads(text.splitlines()[0])) == {
        *("layertap_golden", "model", "parameter_dtypes", "torch", "records", "sha256")
    }


def test_nan_and_infinity_are_kept_as_words(small, tmp_path):
    with torch.no_grad():
        small[0].weight[0] = math.nan
        small[2].bias[1] = math.inf
    save_golden(recorded(small, (torch.ones(2, 4),), sites="*"), tmp_path / "nan.layertap")
    text = (tmp_path / "nan.layertap").read_text()
    for line in text.splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not valid JSON"))
    assert '"NaN"' in text
    loaded = load_golden(tmp_path / "nan.layertap")
    assert loaded["0"].record.statistics.nan == 2
    assert math.isnan(loaded["0"].record.statistics.first[0])


def test_a_changed_layer_is_a_changed_line(small, golden, tmp_path):
    with torch.no_grad():
        small[2].bias += 1
    save_golden(recorded(small, (torch.ones(2, 4),), sites="*"), tmp_path / "b.layertap")
    one, two = (path.read_text().splitlines() for path in (golden, tmp_path / "b.layertap"))
    changed = [json.loads(a).get("site") for a, b in zip(one, two, strict=True) if a != b]
    assert changed == [None, "2"]  # the head, with its checksum, and the layer


def test_a_missing_file_says_how_to_make_it(tmp_path):
    with pytest.raises(
        NotARun, match=r"no\.layertap: there is no golden baseline here yet; .*pytest --layertap-update"
    ):
        load_golden(tmp_path / "no.layertap")


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(BadArgument, match="expected a Run, a recorder or a path, got int"):
        save_golden(3, tmp_path / "a.layertap")


def test_a_recording_that_still_runs_is_no_baseline(small, tmp_path):
    with lt.record(small, sites="*") as rec:
        small(torch.ones(2, 4))
        with pytest.raises(BadArgument, match=r"partial.*after the `with` block"):
            save_golden(rec, tmp_path / "a.layertap")
    assert not (tmp_path / "a.layertap").exists()


def test_a_place_that_cannot_be_written_is_told_and_left_clean(small, tmp_path):
    (tmp_path / "a.layertap").mkdir()
    with pytest.raises(RunError, match=r"a\.layertap: the golden cannot be written"):
        save_golden(recorded(small, (torch.ones(2, 4),), sites="*"), tmp_path / "a.layertap")
    assert [path.name for path in tmp_path.iterdir()] == ["a.layertap"]


# Broken files.


def rewrite(path, change, line=1):
    """Changes one line and sets the checksum right, as someone who means harm would."""
    lines = path.read_text().splitlines()
    row = json.loads(lines[line])
    change(row)
    lines[line] = json.dumps(row)
    body = "".join(f"{text}\n" for text in lines[1:]).encode()
    head = {**json.loads(lines[0]), "sha256": hashlib.sha256(body).hexdigest()}
    path.write_bytes(f"{json.dumps(head)}\n".encode() + body)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("site", "a:b:c", "is not a site"),
        ("site", "a@99999999999", "call must be a whole number"),
        ("site", "\ud800", "surrogates not allowed"),
        ("site", None, "site must be a string"),
        ("shape", 3, "shape must be a list"),
        ("shape", [-1], "shape must be a whole number from 0"),
        ("count", 1 << 70, "count must be a whole number"),
        ("count", True, "count must be a whole number"),
        ("rank", 1 << 40, "rank must be a whole number"),
        ("mean", "nothing", "mean must be a number"),
        ("mean", [1], "mean must be a number"),
        ("l2", 10**400, "int too large"),
        ("first", [{}], "first must be a number"),
        ("fingerprint", "__import__('os')", "does not consist of 16 hexadecimal digits"),
        ("fingerprint", 17, "fingerprint must be a string"),
        ("sketch", "AAAA", "sketch has 3 bytes, expected 1004"),
        ("sketch", "§", "sketch is not base64"),
        ("asked", 0, "asked must be true or false"),
    ],
)
def test_a_wrong_value_is_one_clear_error(golden, name, value, told):
    rewrite(golden, lambda row: row.update({name: value}))
    with pytest.raises(CorruptRun, match=r"small\.layertap, line 2: ") as error:
        load_golden(golden)
    assert told in str(error.value)
    assert "--layertap-update" in str(error.value)


def test_a_missing_field_is_named(golden):
    rewrite(golden, lambda row: row.pop("dtype"), line=2)
    with pytest.raises(CorruptRun, match=r"small\.layertap, line 3: 'dtype' is missing"):
        load_golden(golden)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda data: b"", "first line has no layertap_golden"),
        (lambda data: b"\x80\x04\x95cos\nsystem\n", "first line has no layertap_golden"),
        (lambda data: b"[" * 100_000, "first line has no layertap_golden"),
        (lambda data: b"[1]\n" + data, "first line has no layertap_golden"),
        (lambda data: b"<<<<<<< HEAD\n" + data, "first line has no layertap_golden"),
        (lambda data: b"\n".join(data.splitlines()[:-1]) + b"\n", "4 records expected, 3 lines found"),
        (lambda data: data.replace(b'"order": 2', b'"order": 7'), "do not match the checksum"),
        (lambda data: data.replace(b'["float32"]', b"[3]"), "parameter_dtypes is not a list of names"),
    ],
    ids=["empty", "pickle", "deep", "list", "conflict", "cut", "edited", "dtypes"],
)
def test_a_broken_file_is_one_clear_error(golden, spoil, told):
    golden.write_bytes(spoil(golden.read_bytes()))
    with pytest.raises(CorruptRun, match=r"small\.layertap: ") as error:
        load_golden(golden)
    assert told in str(error.value)


def test_a_line_of_anything_is_one_clear_error(golden):
    head, *lines = golden.read_bytes().splitlines(keepends=True)
    for line in (b"[]\n", b'{"mean": NaN}\n', b"{" * 5 + b"\n", b'{"a":' * 50_000 + b"\n", b"\xff\xfe\n"):
        body = b"".join([line, *lines[1:]])
        top = {**json.loads(head), "sha256": hashlib.sha256(body).hexdigest()}
        golden.write_bytes(json.dumps(top).encode() + b"\n" + body)
        with pytest.raises(CorruptRun, match=r"small\.layertap, line 2: "):
            load_golden(golden)


def test_a_folder_and_a_huge_file_are_refused(tmp_path, monkeypatch, golden):
    (tmp_path / "folder.layertap").mkdir()
    with pytest.raises(CorruptRun, match=r"folder\.layertap: cannot be read"):
        load_golden(tmp_path / "folder.layertap")
    monkeypatch.setattr("layertap.testing.golden.MAX_BYTES", 100)
    with pytest.raises(CorruptRun, match="larger than 100 bytes"):
        load_golden(golden)


def test_a_newer_file_asks_for_an_upgrade(golden):
    golden.write_text(golden.read_text().replace('"layertap_golden": 1', '"layertap_golden": 2'))
    with pytest.raises(NewerFormat, match=r"format 2; this layertap reads up to 1.*pip install -U layertap"):
        load_golden(golden)


def test_line_ends_changed_by_git_are_no_damage(golden):
    before = list(load_golden(golden).records())
    golden.write_bytes(golden.read_bytes().replace(b"\n", b"\r\n"))
    assert list(load_golden(golden).records()) == before


def test_a_sketch_is_stored_to_the_last_bit(small, golden):
    record = recorded(small, (torch.ones(2, 4),), sites="*").run["2"].record
    row = json.loads(golden.read_text().splitlines()[-1])
    assert base64.b64decode(row["sketch"]) == record.sketch
