"""Files that cannot be opened: one short error that says what is wrong and what to do."""

import pickle
import shutil
import warnings

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.errors import LayertapError
from targets.artefacts import make


def model():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval()


def half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def old_weights(folder):
    torch.save(model().state_dict(), folder / "a.pt", _use_new_zipfile_serialization=False)
    return folder / "a.pt"


def written(name, content):
    def write(folder):
        (folder / name).write_bytes(content)
        return folder / name

    return write


def a_folder(folder):
    (folder / "a.pt").mkdir()
    return folder / "a.pt"


def cut_trace(folder):
    return half(make("torchscript", model(), (torch.ones(2, 64),), folder / "a.pt"))


def onnx_alone(folder):
    path = folder / "a.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model(), (torch.ones(2, 64),), path, dynamo=True, external_data=True, verbose=False)
    path.with_name("a.onnx.data").unlink()
    return path


def ir_alone(folder):
    path = make("openvino", model(), (torch.ones(2, 64),), folder / "a.xml")
    path.with_suffix(".bin").unlink()
    return path


def ir_with_other_weights(folder):
    path = make("openvino", model(), (torch.ones(2, 64),), folder / "a.xml")
    path.with_suffix(".bin").write_bytes(b"short")
    return path


def baked(name, content):
    def write(folder):
        tapped = lt.bake(model(), sites="0")
        tapped(torch.ones(2, 64))
        (folder / name).write_bytes(content)
        tapped.layout.save(folder / name)
        return folder / name

    return write


def bad_layout(text):
    def write(folder):
        (folder / "a.onnx.layout.json").write_text(text)
        return written("a.onnx", b"anything")(folder)

    return write


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("write", "says"),
    [
        (a_folder, "is a folder, not a file"),
        (written("a.pt", b""), "is empty"),
        (written("a.onnx", b""), "contains no graph"),
        (written("a.xml", b"<html>"), "is not an OpenVINO IR"),
        (written("a.pt", pickle.dumps({})), "a pickle, which is not opened"),
        (old_weights, "a pickle, which is not opened"),
        (cut_trace, "the archive is damaged or incomplete"),
        (onnx_alone, r"its weights are in a\.(bin|onnx\.data), which is not beside it"),
        (ir_alone, r"its weights are in a\.(bin|onnx\.data), which is not beside it"),
        (ir_with_other_weights, "cannot be read as OpenVINO IR: Incorrect weights"),
        (baked("a.onnx", b"broken"), "has a layout of baked taps, but cannot be loaded"),
        (baked("a.pt", b"PKbroken"), "the archive is damaged"),
        (bad_layout("{"), r"a\.onnx\.layout\.json is not valid JSON"),
        (bad_layout('{"format": "layertap-layout", "version": "x"}'), "is a damaged layout"),
    ],
)
def test_the_error_says_what_is_wrong(write, says, tmp_path):
    with pytest.raises(LayertapError, match=says) as raised:
        lt.open_target(write(tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.filterwarnings("ignore")
def test_torchscript_of_another_name_is_opened_by_what_is_in_it(tmp_path):
    path = make("torchscript", model(), (torch.ones(2, 64),), tmp_path / "a.pt")
    shutil.move(path, tmp_path / "a.jit")
    assert [site.path for site in lt.open_target(tmp_path / "a.jit").sites] == ["", "0", "1"]
