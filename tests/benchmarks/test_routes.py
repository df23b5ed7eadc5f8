"""Every route to something compiled keeps baked taps: made on one input, checked on another (A2, A4, B3, B5)."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import layertap as lt
from layertap.errors import BadArgument
from layertap.targets.checking import check_baked
from models import minimax_m2, qwen3

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from benchmarks.routes.routes import ROUTES, quiet  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # compilers warn of their own ageing

SITES = ["model.layers.*", "model.layers.0.self_attn", "model.rotary_emb", "lm_head:input"]
QUICK = {
    "jit.trace saved",
    "jit.trace frozen",
    "export strict",
    "export saved",
    "compile aot_eager",
    "ONNX Runtime",
    "IREE",
}
BY_NAME = {route.name: route for route in ROUTES}


QUICK_FIRST = [route if route.name in QUICK else pytest.param(route, marks=pytest.mark.slow) for route in ROUTES]


def two_inputs(make):
    model, first = make(layers=2)
    model.config.use_cache = False
    return model, first, make(layers=2, seed=4)[1]


@pytest.mark.parametrize("route", QUICK_FIRST, ids=lambda route: route.name)
def test_a_route_keeps_the_taps(route, tmp_path):
    model, first, second = two_inputs(qwen3)
    tapped = lt.bake(model, sites=SITES)
    run, artefact = route.run(tapped, first, tmp_path)
    found = check_baked(tapped, run, first, second)
    assert found.right, str(found)
    assert {"model.layers.0", "model.layers.1", "lm_head:input", "model.layers.0.self_attn:output.0"} <= set(
        found.fresh
    )
    assert set(found.constant) == {"model.rotary_emb:output.0", "model.rotary_emb:output.1"}
    if artefact is not None:
        in_a_fresh_process(route, artefact, tapped, run, second, tmp_path)


def in_a_fresh_process(route, artefact, tapped, run, inputs, folder):
    tapped.layout.save(artefact)
    want = tapped.split(run(inputs))[1]
    np.savez(folder / "in.npz", **{name: value.numpy() for name, value in inputs.items()})
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.routes.fresh", route.kind, artefact]
    subprocess.run([*command, folder / "in.npz", folder / "out.npz"], cwd=ROOT, check=True, capture_output=True)
    with np.load(folder / "out.npz") as found:
        assert set(found.files) - {"__output__"} == set(map(str, want))
        assert all(np.array_equal(found[str(site)], np.asarray(value)) for site, value in want.items())


@pytest.mark.parametrize("name", ["jit.trace saved", "export strict"])
def test_a_mixture_of_experts_too(name, tmp_path):
    """`make routes` takes it through all of them."""
    model, first, second = two_inputs(minimax_m2)
    tapped = lt.bake(model, sites=["model.layers.*", "**.experts", "**.gate"])
    run, _ = BY_NAME[name].run(tapped, first, tmp_path)
    found = check_baked(tapped, run, first, second)
    assert found.right, str(found)
    assert "model.layers.1.mlp.experts" in found.fresh


@pytest.mark.parametrize(
    "name", ["jit.trace frozen", "export saved", "ONNX Runtime", pytest.param("IREE", marks=pytest.mark.slow)]
)
def test_statistics_computed_inside_the_graph(name, tmp_path):
    model, first, second = two_inputs(qwen3)
    tapped = lt.bake(model, sites=["model.layers.*"], keep="stats")
    run, _ = BY_NAME[name].run(tapped, first, tmp_path)
    found = check_baked(tapped, run, first, second)
    assert found.right, str(found)
    assert found.fresh == ("model.layers.0", "model.layers.1")


def test_the_layout_lies_inside_torch_s_own_files(tmp_path):
    model, first, second = two_inputs(qwen3)
    tapped = lt.bake(model, sites="model.layers.*")
    with quiet(), torch.no_grad():
        program = torch.export.export(tapped, (), first)
        traced = torch.jit.trace(tapped, example_kwarg_inputs=first, check_trace=False)
        extra = {lt.store.layout.NAME: tapped.layout.dumps()}
        torch.export.save(program, tmp_path / "a.pt2", extra_files=extra)
        torch.jit.save(traced, tmp_path / "b.pt", _extra_files=extra)
        for file, load in (("a.pt2", lambda p: torch.export.load(p).module()), ("b.pt", torch.jit.load)):
            output, taps = lt.capture.Layout.load(tmp_path / file).split(load(tmp_path / file)(**second))
            assert torch.equal(output.logits, model(**second).logits)
            assert list(taps) == ["model.layers.0", "model.layers.1"]


def test_the_list_that_a_tracer_fills_is_stale_and_ours_is_not():
    """The trick of the documents: a list filled in `forward`, read after the traced model ran."""
    seen = []

    class Recorded(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

        def forward(self, x):
            seen.clear()
            for layer in self.layers:
                x = layer(x)
                seen.append(x)
            return x

    model, first, second = Recorded().eval(), torch.zeros(1, 3), torch.ones(1, 3)
    tapped = lt.bake(model, sites="layers.*")
    with quiet(), torch.no_grad():
        ours = torch.jit.trace(tapped, first)
        theirs = torch.jit.trace(model, first)
        theirs(second)
        stale = [value.clone() for value in seen]
        _, taps = tapped.split(ours(second))
        model(second)
        right = list(seen)
    assert not any(torch.equal(a, b) for a, b in zip(stale, right, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(taps.values(), right, strict=True))


def test_a_stale_tap_and_a_folded_one_are_told_apart():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    tapped = lt.bake(model, sites="*")
    first, second = (torch.ones(1, 3),), (torch.full((1, 3), -2.0),)
    with torch.no_grad():
        kept = tapped(*first)
        found = check_baked(tapped, lambda inputs: (*tapped(*inputs)[:1], kept[1], *tapped(*inputs)[2:]), first, second)
    assert found.stale == ("0",)
    assert not found.right
    assert "stale: 0" in str(found)


def test_unsteady_taps_wrong_structure_and_drift_are_seen():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tapped = lt.bake(model, sites="*")
    first, second = (torch.ones(1, 3),), (torch.full((1, 3), -2.0),)

    def noisy(inputs):
        output, one, two = tapped(*inputs)
        return output, one + torch.rand(()), two

    with torch.no_grad():
        found = check_baked(tapped, noisy, first, second, untapped=lambda inputs: (model(*inputs) + 1,))
    assert found.unsteady == ("0",)
    assert found.drift > 10 * found.floor
    assert not found.right
    assert found.error > found.floor


def test_scripting_says_what_to_do():
    with quiet(), pytest.raises(BadArgument, match=r"torch\.jit\.script\(model\).*open_target"):
        torch.jit.script(lt.bake(nn.Sequential(nn.Linear(3, 3)), sites="0"))
