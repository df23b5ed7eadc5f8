"""The pytest plugin, run by pytest inside pytest."""

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch  # noqa: F401  a pytest within pytest forgets what it imported first, and torch cannot be imported twice

from layertap.testing.plugin import file_name
from layertap.testing.session import current

pytest_plugins = ["pytester"]

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"

SUITE = """
    import os
    import pytest, torch, layertap as lt
    from torch import nn

    def recorded(row=None, seed=0):
        torch.manual_seed(seed)
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        if row is not None:
            with torch.no_grad():
                model[2].weight[row] = 0
        with lt.record(model, sites="*") as rec:
            model(torch.linspace(-1, 1, 24).reshape(3, 8))
        return rec

    BROKEN = 3 if os.path.exists("broken") else None
"""


@pytest.fixture
def suite(pytester):
    def write(body, name="test_a"):
        pytester.makepyfile(**{name: SUITE + body})
        return pytester

    return write


ONE = """
    def test_model(layertap_golden):
        layertap_golden(recorded(BROKEN))
"""


def goldens(pytester):
    return sorted(str(path.relative_to(pytester.path)) for path in pytester.path.rglob("*.layertap"))


def test_written_compared_broken_and_written_anew(suite):
    pytester = suite(ONE)
    missing = pytester.runpytest_inprocess()
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(
        ["*NotARun: *golden/test_a/test_model.layertap: there is no golden*pytest --layertap-update*"]
    )
    assert goldens(pytester) == []

    first = pytester.runpytest_inprocess("--layertap-update")
    first.assert_outcomes(passed=1)
    first.stdout.fnmatch_lines(["layertap: 1 golden baseline written: golden/test_a/test_model.layertap (new)"])
    assert goldens(pytester) == ["golden/test_a/test_model.layertap"]

    same = pytester.runpytest_inprocess()
    same.assert_outcomes(passed=1)
    same.stdout.no_fnmatch_line("*layertap:*")
    again = pytester.runpytest_inprocess("--layertap-update")
    again.stdout.fnmatch_lines(["layertap: no golden baselines written; 1 unchanged"])

    (pytester.path / "broken").touch()
    broken = pytester.runpytest_inprocess()
    broken.assert_outcomes(failed=1)
    broken.stdout.fnmatch_lines(["E *AssertionError: FAULT: this run against *", "E *first departure: 2 (Linear)*"])

    meant = pytester.runpytest_inprocess("--layertap-update")
    meant.assert_outcomes(passed=1)
    meant.stdout.fnmatch_lines(["layertap: 1 golden * written: *test_model.layertap (was: fault, first at 2)"])
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_a_failure_shows_the_test_and_the_report_once_and_no_line_of_ours(suite):
    pytester = suite(ONE)
    pytester.runpytest_inprocess("--layertap-update")
    (pytester.path / "broken").touch()
    lines = pytester.runpytest_inprocess("-rN").outlines
    assert sum("first departure" in line for line in lines) == 1
    assert any(line.startswith(">") and "layertap_golden(recorded(BROKEN))" in line for line in lines)
    assert not any("matching.py" in line or "plugin.py" in line for line in lines)


def test_each_parameter_and_each_class_has_its_own(suite):
    pytester = suite("""
    @pytest.mark.parametrize("seed", [1, 2], ids=["a/b", "a:b"])
    @pytest.mark.parametrize("kind", ["sdpa"])
    def test_model(layertap_golden, kind, seed):
        layertap_golden(recorded(seed=seed))

    class TestModel:
        def test_model(self, layertap_golden):
            layertap_golden(recorded(seed=3))
            layertap_golden(recorded(seed=4), "prefill")
    """)
    pytester.runpytest_inprocess("--layertap-update").assert_outcomes(passed=3)
    names = [name.removeprefix("golden/test_a/") for name in goldens(pytester)]
    assert names[:2] == ["TestModel.test_model.layertap", "prefill.layertap"]
    assert [re.sub("[0-9a-f]{8}", "#", name) for name in names[2:]] == ["test_model-sdpa-a_b-#.layertap"] * 2
    pytester.runpytest_inprocess().assert_outcomes(passed=3)


def test_one_golden_for_several_tests_is_written_by_the_first(suite):
    pytester = suite("""
    @pytest.mark.parametrize("row", [None, 3])
    def test_model(layertap_golden, row):
        layertap_golden(recorded(row), "shared")
    """)
    for options in (["--layertap-update"], []):
        done = pytester.runpytest_inprocess(*options)
        done.assert_outcomes(passed=1, failed=1)
        done.stdout.fnmatch_lines(["*first departure: 2 (Linear)*"])
    assert goldens(pytester) == ["golden/test_a/shared.layertap"]


@pytest.mark.parametrize("name", ["'../up'", "'a/b'", "'.hidden'", "''"])
def test_a_name_is_not_a_path(suite, name):
    pytester = suite(f"""
    def test_model(layertap_golden):
        layertap_golden(recorded(), {name})
    """)
    done = pytester.runpytest_inprocess("--layertap-update")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*BadArgument: *cannot be the name of a golden*assert_matches(run, path)*"])
    assert goldens(pytester) == []


def test_a_second_golden_in_one_test_needs_a_name(suite):
    pytester = suite("""
    def test_model(layertap_golden):
        layertap_golden(recorded())
        layertap_golden(recorded())
    """)
    done = pytester.runpytest_inprocess("--layertap-update")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*BadArgument: layertap_golden was called twice in this test; give the second*"])


def test_assert_matches_hears_the_option_without_the_fixture(suite):
    pytester = suite("""
    from layertap.testing import assert_matches
    def test_model():
        assert_matches(recorded(), "here.layertap")
        assert_matches(recorded(), "here.layertap", update=False)
    """)
    pytester.runpytest_inprocess().assert_outcomes(failed=1)
    done = pytester.runpytest_inprocess("--layertap-update")
    done.stdout.fnmatch_lines(["layertap: 1 golden baseline written: here.layertap (new)"])
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_a_session_ends_with_its_pytest(suite):
    before = current()
    suite(ONE).runpytest_inprocess("--layertap-update")
    assert current() is before
    assert before is not None
    assert not before.update


@pytest.mark.slow
def test_workers_of_xdist_write_and_the_summary_knows(suite):
    pytester = suite("""
    @pytest.mark.parametrize("seed", range(4))
    def test_model(layertap_golden, seed):
        layertap_golden(recorded(seed=seed))
    """)
    done = pytester.runpytest_subprocess("-n2", "--layertap-update")
    done.assert_outcomes(passed=4)
    done.stdout.fnmatch_lines(
        ["layertap: 4 golden baselines written: *test_model-0.layertap (new), *-3.layertap (new)"]
    )
    assert len(goldens(pytester)) == 4
    assert not list(pytester.path.rglob("*.tmp"))
    pytester.runpytest_subprocess("-n2").assert_outcomes(passed=4)


def test_the_page_s_example_does_what_the_page_says(pytester):
    page = DOCS.read_text(encoding="utf-8")
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    pytester.makepyfile(test_model=blocks["python"])
    written = pytester.runpytest_inprocess("--layertap-update")
    written.stdout.fnmatch_lines([blocks["console"].splitlines()[1]])
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
    breaking = "    with torch.no_grad():\n        model[2].weight[5] = 0\n    with lt.record("
    pytester.makepyfile(test_model=blocks["python"].replace("    with lt.record(", breaking))
    broken = pytester.runpytest_inprocess()
    broken.assert_outcomes(failed=1)
    broken.stdout.fnmatch_lines(
        [re.sub(r"^E +", "E *", line).replace("…", "*") for line in blocks["text"].splitlines()]
    )


def test_pytest_finds_the_plugin_by_itself():
    found = [entry.value for entry in entry_points(group="pytest11") if entry.name == "layertap"]
    assert found == ["layertap.testing.plugin"], "install the project again: pip install -e ."


def test_loading_the_plugin_imports_nothing_heavy(tmp_path):
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing(request, layertap_golden):\n"
        "    assert request.config.pluginmanager.hasplugin('layertap')\n"
        "    assert not {'torch', 'pyarrow', 'numpy', 'rich'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", "--rootdir", tmp_path, tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("test_a", "test_a"),
        ("TestA::test_b[fp32-2]", "TestA.test_b-fp32-2"),
        ("test_a[x[0]]", "test_a-x_0_-30e6aeb8"),
        ("test_a[注意]", "test_a-__-"),
    ],
)
def test_names_become_file_names(test, name):
    assert file_name(test).startswith(name)


def test_no_two_tests_share_a_file_by_accident():
    tests = ["test_a[x/y]", "test_a[x:y]", "test_a[x_y]", "test_a[x y]", f"test_a[{'z' * 500}]", f"test_a[{'z' * 501}]"]
    names = [file_name(test) for test in tests]
    assert len(set(names)) == len(tests)
    assert max(map(len, names)) < 200


@pytest.mark.slow
def test_goldens_are_compared_by_the_engine_that_the_command_line_names(suite):
    pytest.importorskip("ray")
    pytester = suite(
        """
    def test_model(layertap_golden):
        layertap_golden(recorded())

    def test_who(layertap_golden):
        import sys
        layertap_golden(recorded(), "same")
        assert "ray" in sys.modules and sys.modules["ray"].is_initialized()
"""
    )
    pytester.runpytest_subprocess("--layertap-update").assert_outcomes(passed=1, failed=1)
    unknown = pytester.runpytest_subprocess("--layertap-engine", "spark")
    unknown.assert_outcomes(failed=2)
    unknown.stdout.fnmatch_lines(["*BadArgument: engine='spark' is unknown; known are in-process, ray"])
    pytester.runpytest_subprocess("--layertap-engine", "ray").assert_outcomes(passed=2)
