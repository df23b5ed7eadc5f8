"""Inputs from files, from the factory, or none at all."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from layertap.errors import BadArgument, TargetError
from layertap.targets import Target, make_inputs


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, x, mask=None):
        return self.linear(x)


X = torch.tensor([[1.0, 2.0]])


@pytest.fixture
def target():
    return Target(model=Net(), inputs=(X,), name="net.py:make")


def write(path):
    match path.suffix:
        case ".npz":
            np.savez(path, x=X.numpy(), mask=np.array([True]))
        case ".safetensors":
            save_file({"x": X, "mask": torch.tensor([True])}, path)
        case ".json":
            path.write_text(json.dumps({"x": X.tolist(), "mask": [True]}))
        case ".pt":
            torch.save({"x": X, "mask": torch.tensor([True])}, path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".json", ".pt"])
def test_files_give_keywords(target, tmp_path, suffix):
    path = tmp_path / f"inputs{suffix}"
    write(path)
    inputs = make_inputs(target, input=path)
    assert torch.equal(inputs["x"], X)
    assert inputs["x"].dtype == torch.float32
    assert inputs["mask"].dtype == torch.bool
    assert target.run(inputs).shape == (1, 3)


def test_arrays_without_names_are_positional(target, tmp_path):
    np.savez(tmp_path / "inputs.npz", *[np.full((1, 2), number, "float32") for number in range(11)])
    assert [int(value[0, 0]) for value in make_inputs(target, input=tmp_path / "inputs.npz")] == list(range(11))
    torch.save((X,), tmp_path / "inputs.pt")
    assert torch.equal(make_inputs(target, input=tmp_path / "inputs.pt")[0], X)


def test_the_factory_s_inputs_are_used_when_nothing_is_given(target):
    assert make_inputs(target) == (X,)
    with pytest.raises(BadArgument, match="seq_len=4 is for random ids; the factory's input has its own length"):
        make_inputs(target, seq_len=4)


def test_inputs_go_to_the_model_s_device(target):
    moved = make_inputs(Target(model=Net().to("meta"), inputs=(X, None), name="meta"))
    assert moved[0].device.type == "meta"
    assert moved[1] is None


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("inputs.txt", b"1", ".txt is not a supported input; use .npz, .safetensors, .json, .pt"),
        ("inputs.json", b"[1]", 'contains a list; expected an object such as {"input_ids": [[1, 2]]}'),
        ("inputs.json", b'{"x": [[1], [1, 2]]}', "cannot be read as .json input"),
        ("inputs.json", b"{}", "contains no inputs"),
        ("inputs.json", b'{"y": [1.0]}', "has 'y', which Net does not take; it takes x, mask"),
        ("inputs.npz", b"broken", "cannot be read as .npz input"),
        ("inputs.safetensors", b"broken", "cannot be read as .safetensors input"),
        ("inputs.pt", b"broken", "cannot be read as .pt input"),
    ],
)
def test_bad_files_are_named(target, tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TargetError) as error:
        make_inputs(target, input=path)
    assert str(path) in str(error.value)
    assert says in str(error.value)


class Evil:
    def __reduce__(self):
        return print, ("this must not run",)


def test_no_code_runs_from_an_input_file(target, tmp_path, capsys):
    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    np.savez(tmp_path / "evil.npz", x=np.array([Evil()], dtype=object))
    for name in ("evil.pt", "evil.npz"):
        with pytest.raises(TargetError, match="cannot be read"):
            make_inputs(target, input=tmp_path / name)
    assert capsys.readouterr().out == ""


def test_contradictions_and_gaps_say_the_way_out(target, tmp_path):
    with pytest.raises(BadArgument, match="a prompt and an input file exclude each other"):
        make_inputs(target, prompt="x", input="y.npz")
    with pytest.raises(TargetError, match=r"there is no input file .*missing.npz"):
        make_inputs(target, input=tmp_path / "missing.npz")
    with pytest.raises(TargetError, match=r"net.py:make has no tokenizer"):
        make_inputs(target, prompt="x")
    bare = Target(model=Net(), name="net.py:make")
    with pytest.raises(TargetError, match=r"Net has no vocabulary .* let the factory return \(model, inputs\)"):
        make_inputs(bare)
