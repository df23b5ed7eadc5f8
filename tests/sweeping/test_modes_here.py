"""Parts of a mode's own process, run in this one; and what the sweep makes of their runs."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import layertap as lt
from layertap.errors import BadArgument
from layertap.sweeping.comparing import groups_of, matched, matrix_of, measure_all, recorded, rows_against
from layertap.sweeping.definition import read_definition
from layertap.sweeping.evidence_words import bits_of
from layertap.sweeping.recording import record_mode
from layertap.sweeping.task import task_of
from targets.artefacts import quiet

NET = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x, residual):
        y = self.fc.forward(x)
        return torch.relu(y), residual + y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        residual = x
        for block in self.blocks:
            x, residual = block(x, residual)
        return residual


def make():
    torch.manual_seed(0)
    return Net().eval()
"""


@pytest.fixture
def mode(tmp_path):
    """Records one mode of the net here; returns its run."""
    (tmp_path / "net.py").write_text(NET)

    def record(name, **keys):
        defined = read_definition(
            {
                "target": f"{tmp_path / 'net.py'}:make",
                "input": {"random": [8, 16], "seed": 0},
                "modes": {name: keys},
            }
        )
        task = task_of(defined, defined.mode(name), tmp_path / name, torch.get_num_threads())
        record_mode(task)
        return lt.Run(tmp_path / name)

    return record


@pytest.mark.parametrize("size", [1, 3, 8, 64])
def test_the_same_rows_in_batches_are_the_same_run_up_to_rounding(mode, size):
    plain, batches = mode("plain"), mode("batches", batch=size)
    assert not batches.problems
    sites = [str(record.site) for record in plain.records() if record.asked]
    assert "blocks.1:output.1" in sites, "every leaf"
    for site in sites:
        a, b = plain[site].numpy(), batches[site].numpy()
        assert a.shape == b.shape
        assert np.abs(a - b).max() < 1e-6


def test_a_dtype_cannot_be_given_to_a_compiled_file(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    names: dict = {}
    exec(NET, names)
    with quiet():
        torch.jit.trace(names["make"](), torch.randn(8, 16)).save(tmp_path / "net.ts")
    defined = read_definition(
        {
            "target": str(tmp_path / "net.ts"),
            "input": {"random": [8, 16]},
            "modes": {"plain": {}, "half": {"dtype": "bfloat16"}},
        }
    )
    tasks = {name: task_of(defined, defined.mode(name), tmp_path / name, 1) for name in defined.names}
    threads = torch.get_num_threads()
    try:
        assert record_mode(tasks["plain"])["outputs"]
        with pytest.raises(BadArgument, match="is compiled, so dtype cannot change it"):
            record_mode(tasks["half"])
    finally:
        torch.set_num_threads(threads)


class Out(nn.Module):
    """Returns the chosen part of what it is given."""

    def __init__(self, make):
        super().__init__()
        self.part = _Part(make)

    def forward(self, x):
        return self.part(x)


class _Part(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


def recorded_modes(folder, **makes):
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    modes = []
    for name, make in makes.items():
        model = Out(make)
        with lt.record(model, folder / name, sites=["part"], keep="tensor"):
            model(x)
        modes.append(recorded(name, folder / name, {}))
    return modes


def test_codes_are_held_against_values_by_the_scale_that_fits(tmp_path):
    def codes(x):
        return (x / 0.03).round().clamp(-128, 127).to(torch.int8)

    modes = recorded_modes(tmp_path, float=lambda x: x, codes=codes, other=lambda x: codes(x.flip(0)))
    measured = measure_all(modes)
    values, kept = (mode.run["part"].numpy().astype(np.float64) for mode in modes[:2])
    scale = (kept * values).sum() / (kept * kept).sum()
    error = np.linalg.norm(kept * scale - values) / np.linalg.norm(values)
    matrix = matrix_of(modes, measured)
    assert matrix["float", "codes", "part"] == pytest.approx(error, rel=1e-4)
    assert matrix["codes", "float", "part"] == pytest.approx(error, rel=1e-4)
    for reference, mode in ((0, 1), (1, 0)):
        one, two = modes[reference], modes[mode]
        pair = measured[modes[0].name, modes[1].name] if reference == 0 else measure_all([one, two])[one.name, two.name]
        _, rows = rows_against(one, two, pair, bits=0, dtypes=["float32"], floors={})
        assert rows[0].verdict == "noise", rows[0].why
        assert rows[0].ideal_sqnr > 30
    verdict, rows = rows_against(
        modes[0], modes[2], measured["float", "other"], bits=8, dtypes=["float32"], floors={}
    )  # fmt: skip
    assert (verdict, rows[0].verdict) == ("inconclusive", "inconclusive"), "whole numbers of something else"


def test_leaves_of_other_names_are_matched_by_order_and_shape(tmp_path):
    modes = recorded_modes(
        tmp_path,
        eager=lambda x: (x, x.sum(0)),
        compiled=lambda x: {"v0": x, "v1": x.sum(0)},
        turned=lambda x: {"v0": x.sum(0), "v1": x},
    )
    eager, compiled, turned = matched(modes, "eager")
    assert list(compiled.records) == list(eager.records)
    assert groups_of([eager, compiled], "eager") == (("eager", "compiled"),)
    assert list(turned.records) != list(eager.records), "shapes in another order prove nothing"


def test_nan_on_one_side_is_a_fault(tmp_path):
    one, two = recorded_modes(tmp_path, a=lambda x: x, b=lambda x: x.masked_fill(x > 2, math.nan))
    verdict, rows = rows_against(one, two, measure_all([one, two])["a", "b"], bits=0, dtypes=["float32"], floors={})
    assert verdict == "fault"
    assert rows[0].ratio == math.inf


@pytest.mark.parametrize(
    ("evidence", "bits"),
    [
        ({"parameters": {"float32": {}}}, 0),
        ({"parameters": {"int8": {}, "int64": {}}}, 8),
        ({"parameters": {"int8": {}}, "rounding": {"round, 7 bits": 1, "round, 8 bits": 9}}, 8),
        ({"rounding": {"round, 6 bits": 4}}, 6),
        ({"rounding": {"round, 10 bits": 4}}, 10),
        ({"weights": {"fc": {"bits": 4}}, "rounding": {"round, 8 bits": 2}}, 4),
        ({"kernels": {"_int_mm(int8, int8)": 3}}, 8),
        ({"casts": {"float32 → float8_e4m3fn": 3}}, 8),
    ],
)
def test_the_bits_that_the_evidence_shows(evidence, bits):
    assert bits_of(evidence) == bits


@pytest.mark.parametrize("name", ["logs", "sweep.json", "Run.json"])
def test_a_mode_cannot_be_called_as_the_sweeps_own_files(name):
    with pytest.raises(BadArgument, match="reserved for the sweep's own files"):
        read_definition({"target": "net.py:make", "modes": {name: {}}})
