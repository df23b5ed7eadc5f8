"""`file.py:factory`."""

import sys
import textwrap

import pytest
import torch

from layertap import open_target
from layertap.errors import TargetError
from layertap.targets import Target


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(code, name="net.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("import torch\nfrom torch import nn\n" + textwrap.dedent(code))
        return name

    return write


def test_a_factory_returns_a_model(write):
    target = open_target(f"{write('def make(): return nn.Linear(2, 3)')}:make")
    assert isinstance(target.model, torch.nn.Linear)
    assert target.inputs is None
    assert target.name == "net.py:make"
    with pytest.raises(TargetError, match=r"net.py:make came without inputs; give some"):
        target.run()


@pytest.mark.parametrize("inputs", ["torch.ones(1, 2)", "(torch.ones(1, 2),)", "{'input': torch.ones(1, 2)}"])
def test_a_factory_returns_a_model_and_inputs(write, inputs):
    target = open_target(f"{write(f'def make(): return nn.Linear(2, 3), {inputs}')}:make")
    output = target.run()
    assert output.shape == (1, 3)
    assert output.is_inference()
    assert target.run((torch.ones(5, 2),)).shape == (5, 3)


def test_a_class_and_a_ready_model_are_factories_too(write):
    name = write("class Net(nn.Linear):\n    def __init__(self): super().__init__(2, 3)\nnet = Net()")
    assert type(open_target(f"{name}:Net").model).__name__ == "Net"
    assert type(open_target(f"{name}:net").model).__name__ == "Net"


def test_two_files_with_a_helper_of_one_name_do_not_see_each_other(write):
    for folder, width in (("a", 3), ("b", 5)):
        write(f"WIDTH = {width}", f"{folder}/helper.py")
        write("from helper import WIDTH\ndef make(): return nn.Linear(2, WIDTH)", f"{folder}/net.py")
    path = list(sys.path)
    first, second, again = (open_target(f"{folder}/net.py:make").model for folder in "aba")
    assert (first.out_features, second.out_features, again.out_features) == (3, 5, 3)
    assert "helper" not in sys.modules
    assert sys.path == path


def test_a_module_of_the_helper_s_name_that_is_there_already_stays(write, monkeypatch):
    other = type(sys)("helper")
    monkeypatch.setitem(sys.modules, "helper", other)
    write("WIDTH = 3", "helper.py")
    name = write("def make():\n    from helper import WIDTH\n    return nn.Linear(2, WIDTH)")
    assert open_target(f"{name}:make").model.out_features == 3
    assert sys.modules["helper"] is other


@pytest.mark.parametrize(
    ("code", "factory", "says"),
    [
        ("def make(): ...\nclass Net: ...", "mke", "net.py has no 'mke'; did you mean 'make'? It has make, Net"),
        ("def make(): ...", "", "net.py has no ''; it has make"),
        ("make = 3", "make", "net.py has 'make', but that is a int; it has no functions and no classes"),
        (
            "def make():\n    raise ValueError('bad width')",
            "make",
            "make raised ValueError: bad width (net.py:4)",
        ),
        ("def make(): return nn.Linear('x', 2)", "make", "(net.py:3)"),
        (
            "import nowhere_at_all",
            "make",
            "importing net.py raised ModuleNotFoundError: No module named",
        ),
        ("raise SystemExit(2)", "make", "importing net.py raised SystemExit: 2 (net.py:3)"),
        ("def make(:", "make", "importing net.py raised SyntaxError"),
        ("def make(): return 3", "make", "net.py:make returned a int; expected an nn.Module, or (nn.Module, inputs)"),
        ("def make(): return 1, 2, 3", "make", "returned a tuple of 3; expected"),
        (
            "def make(): return nn.ReLU(), 'x'",
            "make",
            "returned inputs of type str; expected a dict, a tuple or",
        ),
    ],
)
def test_errors_say_where_and_the_way_out(write, code, factory, says):
    with pytest.raises(TargetError) as error:
        open_target(f"{write(code)}:{factory}")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("missing.py:make", "missing.py:make: there is no file missing.py (looked from "),
        ("resnet50", "'resnet50' is not a target; expected file.py:factory"),
        ("missing.py", "name of the factory: missing.py:NAME"),
        ("net.py", "name of the factory: net.py:make (the file has make, Net)"),
        ("folder", "it looks like a Hugging Face folder: hf:folder"),
    ],
)
def test_what_is_no_target(write, tmp_path, spec, says):
    write("def make(): ...\nclass Net: ...\ndef _hidden(): ...")
    write("", "folder/x.py")
    (tmp_path / "folder" / "config.json").write_text("{}")
    with pytest.raises(TargetError) as error:
        open_target(spec)
    assert says in str(error.value)


def test_a_failing_forward_pass_is_told_with_its_place():
    target = Target(model=torch.nn.Linear(2, 3), name="net.py:make")
    with pytest.raises(TargetError, match=r"net.py:make failed in its forward pass: .*shapes.*\(linear.py:\d+\)"):
        target.run((torch.ones(1, 7),))
