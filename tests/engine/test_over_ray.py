"""The engine by itself: order, bounds, workers that die, errors, and what is left when it ends."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
from itertools import count, islice

import pytest

from engine import doing
from layertap.engine import IN_PROCESS, Recipe, open_engine
from layertap.engine.over_ray import AHEAD, RayEngine
from layertap.errors import BadArgument, EngineError, MissingExtra

pytestmark = pytest.mark.xdist_group("ray")


def mapped(engine, work, items, given=None, **more):
    recipe = Recipe(prepare=doing.given, given=given)
    return engine.map(work, items, here=given, there=lambda: recipe, called=lambda item: f"layers.{item}", **more)


def test_results_come_in_the_items_order_from_other_processes(workers):
    found = list(mapped(workers, doing.told, range(40), "state"))
    assert [item for _, item, _ in found] == list(range(40))
    assert {state for state, _, _ in found} == {"state"}
    pids = {pid for _, _, pid in found}
    assert os.getpid() not in pids
    assert len(pids) == 2
    assert [(state, item) for state, item, _ in mapped(IN_PROCESS, doing.told, range(40), "state")] == [
        (state, item) for state, item, _ in found
    ]


def test_an_item_is_taken_when_there_is_room_for_it(workers):
    taken = []

    def items():
        for item in count():
            taken.append(item)
            yield item

    assert len(list(islice(mapped(workers, doing.told, items()), 10))) == 10
    assert len(taken) <= 10 + AHEAD * 2
    taken.clear()
    assert len(list(islice(mapped(workers, doing.told, items(), at_once=1), 10))) == 10
    assert len(taken) == 10


def test_a_task_whose_worker_dies_is_done_again(workers, tmp_path):
    found = list(mapped(workers, doing.die_once, range(12), str(tmp_path)))
    assert [item for item, _ in found] == list(range(12))
    assert found[5] == (5, True)


def test_a_task_whose_workers_all_die_is_an_error_that_names_it():
    with RayEngine(retries=1) as engine, pytest.raises(EngineError, match=r"^layers\.7: .*lost, 1 retries included"):
        list(mapped(engine, doing.die, [7]))


def test_an_exception_of_the_work_comes_out_as_it_was_with_the_items_name(workers):
    taken = mapped(workers, doing.raise_at_three, range(9))
    assert [next(taken) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError) as told:
        next(taken)
    assert told.value.args == ("layers.3: three",)
    assert "raise_at_three" in str(told.value.__cause__)  # where it was raised
    with pytest.raises(EngineError, match=r"^layers\.0: Odd: 0 and 0"):  # its class cannot be made again
        list(mapped(workers, doing.raise_odd, [0]))


def test_what_cannot_be_sent_is_named(workers):
    with pytest.raises(BadArgument, match=r"^layers\.<.*> cannot be sent to a Ray worker: TypeError"):
        list(mapped(workers, doing.told, [sys.stdout]))


def test_a_worker_has_the_callers_folder_language_and_imports(workers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAYERTAP_LANG", "zh")
    ((language, folder, path),) = mapped(workers, doing.where, [0])
    assert (language, folder) == ("zh", str(tmp_path))
    assert {os.path.abspath(one) for one in sys.path} <= {os.path.abspath(one) for one in path}


def test_a_ray_that_the_user_has_started_is_used_and_left(workers):
    import ray

    assert ray.is_initialized()
    with RayEngine() as engine:
        assert len(list(mapped(engine, doing.told, range(3)))) == 3
    assert ray.is_initialized()
    with pytest.raises(BadArgument, match="connected to a Ray already"), RayEngine("127.0.0.1:6379"):
        pass


SCRIPT = """
import os, signal, sys, tempfile, time
before = dict(os.environ), signal.getsignal(signal.SIGTERM)
from layertap.engine import Recipe, open_engine
sys.path.insert(0, {tests!r})
from engine import doing
for _ in range(2):
    folder = tempfile.mkdtemp()
    with open_engine("ray") as engine:
        recipe = Recipe(prepare=doing.given, given=folder)
        found = list(engine.map(doing.die_once, range(6), here=0, there=lambda: recipe, called=str))
        time.sleep(1)  # Ray would report the worker that died on standard output
    assert found[5] == (5, True)
import ray
assert not ray.is_initialized()
changed = {{name for name in os.environ.keys() | before[0].keys() if os.environ.get(name) != before[0].get(name)}}
ours = ("RAY_AUTH", "RAY_USAGE", "RAY_ENABLE", "PYTHONPATH")
assert not {{name for name in changed if name.startswith(ours)}}, changed
assert signal.getsignal(signal.SIGTERM) is before[1]
print("clean")
"""


def script(text, tmp_path, **environment):
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join(os.path.abspath(one) for one in sys.path if one)
    env = {**os.environ, "PYTHONPATH": path, "HOME": str(tmp_path), **environment}
    env = {name: value for name, value in env.items() if not name.startswith("RAY_")}
    code = textwrap.dedent(text).format(tests=tests)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def test_what_was_started_ends_and_nothing_is_printed_or_left(tmp_path):
    process = script(SCRIPT, tmp_path)
    out, err = process.communicate(timeout=120)
    assert (out, err) == ("clean\n", "")
    assert list(tmp_path.iterdir()) == []  # no token, no file in the home folder


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in what runs in the background
sys.path.insert(0, {tests!r})
from engine import doing
from layertap.engine import Recipe, open_engine
try:
    with open_engine("ray") as engine:
        for item in engine.map(doing.told, iter(int, 1), here=0, there=lambda: Recipe(prepare=doing.given), called=str):
            print("working", flush=True)
except KeyboardInterrupt:
    import ray
    print("interrupted", ray.is_initialized(), flush=True)
"""


def test_ctrl_c_ends_the_work_and_what_was_started(tmp_path):
    process = script(INTERRUPTED, tmp_path)
    try:
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert out.splitlines()[-1] == "interrupted False", err
    assert err == ""


# Without a Ray.


def test_a_cluster_that_cannot_be_reached_is_an_error_at_once(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray tried for minutes"))
    with pytest.raises(EngineError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 \("), RayEngine("127.0.0.1:1"):
        pass
    with pytest.raises(BadArgument, match="'somewhere' is not the address of a Ray cluster"), RayEngine("somewhere"):
        pass


def test_a_missing_ray_is_named_with_the_line_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'layertap\[ray\]'$"), open_engine("ray"):
        pass


def test_arguments():
    with pytest.raises(BadArgument, match="engine='spark' is unknown; known are in-process, ray"):
        open_engine("spark")
    with pytest.raises(BadArgument, match="address='x:1' is for engine='ray'"):
        open_engine(None, "x:1")
    with pytest.raises(BadArgument, match="workers=0: expected at least 1"):
        RayEngine(workers=0)
    with pytest.raises(BadArgument, match="this engine is not open"):
        list(mapped(RayEngine(), doing.told, [1]))
    for name in (None, "in-process"):
        with open_engine(name) as engine:
            assert engine is IN_PROCESS
    with open_engine(IN_PROCESS) as engine:
        assert engine is IN_PROCESS
    assert isinstance(pickle.loads(pickle.dumps(EngineError("x"))), EngineError)
