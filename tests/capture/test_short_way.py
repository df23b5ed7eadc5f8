"""The short way in C: that it is taken, that it counts as the long one does, and that all works without it."""

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import layertap as lt
from layertap.capture import plain_types, short_way
from layertap.measure import measure

X = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))

needs_c = pytest.mark.skipif(not short_way.available(), reason="tap.c was not compiled")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(12))).eval().requires_grad_(False)


def python_calls(work):
    """The functions of Python that are called meanwhile, by file and name."""
    found = Counter()

    def seen(frame, event, _):
        if event == "call":
            found[Path(frame.f_code.co_filename).parts[-2:], frame.f_code.co_name] += 1

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


@needs_c
@pytest.mark.parametrize("keep", ["stats", "tensor"])
@pytest.mark.parametrize("sites", ["*", "3"])
def test_a_tap_calls_no_function_of_python(model, tmp_path, keep, sites):
    layers = list(model)  # the container itself is called with the input, which is recorded the long way

    def work():
        for layer in layers:
            layer(X)

    with lt.record(model, tmp_path, sites=sites, keep=keep) as rec:
        model(X)
        model(X)
        taken = rec.sink.taken
        called = python_calls(work)
        records = rec.sink.taken - taken
    assert records == (len(layers) if sites == "*" else 1)
    packages = {"capture", "layertap", "measure", "store"}
    assert not [key for key in called if key[0][0] in packages and key[1] != "work"]
    assert called[("modules", "module.py"), "_call_impl"] == len(layers)


class OwnCall(nn.Linear):
    """As the blocks of transformers have it, for activation checkpointing."""

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


@needs_c
def test_a_class_with_its_own_call_is_seen_without_python(tmp_path):
    layers = [OwnCall(64, 64).requires_grad_(False) for _ in range(6)]
    model = nn.Sequential(*layers).eval()

    def work():
        for layer in layers:
            layer(X)

    with lt.record(model, tmp_path, sites="*", keep="tensor") as rec:
        expected = model(X)
        model(X)
        taken = rec.sink.taken
        called = python_calls(work)
        assert rec.sink.taken - taken == len(layers)
    assert called.pop((("capture", "test_short_way.py"), "__call__")) == len(layers)
    assert not [key for key in called if key[0][0] in {"capture", "layertap", "measure", "store"} and key[1] != "work"]
    assert torch.equal(rec.run["5"].tensor(), expected)
    receipt = next(site for site in rec.receipt.sites if site.path == "5")
    assert (receipt.fired, receipt.tensors, receipt.direct) == (3, 3, 0)


numbers = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["train", "eval"]), st.integers(0, 4)), min_size=1, max_size=60
)


@needs_c
@given(numbers)
def test_calls_are_numbered_as_in_python(calls):
    ours, theirs = short_way.CallNumbers(), plain_types.CallNumbers()
    assert [ours.take(*call) for call in calls] == [theirs.take(*call) for call in calls]


def test_threads_that_call_one_model_fill_rows_of_their_own(model, tmp_path):
    # Twelve layers in eight threads, with a switch at nearly every byte code: every record must be one whole tensor.
    xs = [torch.randn(4, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
    expected = Counter()
    for x in xs:
        for layer in model:
            x = layer(x)
            expected[measure(x).fingerprint] += 40
    before = sys.getswitchinterval()
    errors = []

    def work(x):
        try:
            for _ in range(40):
                model(x)
        except Exception as error:  # noqa: BLE001 - a thread's error is the test's
            errors.append(error)

    with lt.record(model, tmp_path, sites="*", keep="tensor") as rec:
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=work, args=(x,)) for x in xs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
    assert not errors
    records = [record for record in rec.run.records() if record.site.role == "output"]
    assert Counter(record.fingerprint for record in records) == expected
    assert rec.receipt.complete
    assert len({record.order for record in records}) == len(records)


@needs_c
def test_the_phase_and_the_step_of_a_record_are_those_of_its_call(model):
    with lt.record(model, sites="3") as rec:
        for training in (False, True, True, False):
            model.train(training)
            model(X)
            model(X)
            rec.step()
        rec.epoch, rec.batch = 7, 2
        model(X)
    found = [(r.step, r.phase, r.epoch, r.batch, r.site.call) for r in rec.run["3"]]
    found += [(r.step, r.phase, r.epoch, r.batch, r.site.call) for r in rec.run["3@1"]]
    phases = ["eval", "train", "train", "eval"]
    expected = [(step, phase, None, None, call) for call in (0, 1) for step, phase in enumerate(phases)]
    assert sorted(found) == sorted([*expected, (4, "eval", 7, 2, 0)])


class Recorder(Exception):
    """A name for the error that a forward raises."""


def test_a_call_that_raises_leaves_nothing_under_way(model):
    class Breaks(nn.Module):
        broken = False

        def forward(self, x):
            if self.broken:
                raise Recorder
            return x

    net = nn.Sequential(model[0], Breaks())
    with lt.record(net, sites="*") as rec:
        net(X)
        net(X)
        net[1].broken = True
        with pytest.raises(Recorder):
            net(X)
        net[1].broken = False
        net(X)
    assert [len(rec.run[site]) for site in ("0", "0@1", "0@2", "0@3", "1", "1@1", "1@3")] == [1] * 7
    assert "1@2" not in map(str, rec.run.sites)


WITHOUT = """
import sys
sys.modules["layertap.capture._tap"] = None
import pytest
code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[1:]])
from layertap.capture import short_way
assert not short_way.available()
sys.exit(code)
"""


@pytest.mark.slow
def test_what_is_recorded_without_it_is_the_same():
    here = Path(__file__).parent
    files = [here / name for name in ("test_record.py", "test_taps.py", "test_budget.py", "test_own_state.py")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "-m", "not slow", *map(str, files)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
