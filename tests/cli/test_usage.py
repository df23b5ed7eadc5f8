"""A wrong command line is answered by one line that says what is wrong and the way out, in the user's language."""

import os
import re
import subprocess
import sys

import pytest

WRONG = {
    ("diff", "a"): "CANDIDATE is missing (see python -m layertap diff --help)",
    ("diff", "a", "b", "c"): "not expected: c (see python -m layertap diff --help)",
    ("record", "x.py:make", "--steps", "two"): "--steps two: expected a whole number, 1 or more (see",
    ("diff", "a", "b", "--rtol=x"): "--rtol x: expected a number (see",
    ("diff", "a", "b", "--flor", "c"): "no option --flor; this command has: --floor (see",
    ("diff", "a", "b", "--json=1"): "--json takes no value",
    ("diff", "a", "b", "--floor"): "--floor needs a value",
    ("dif", "a", "b"): "no command 'dif'; nearest: diff",
}


def run(*arguments, language="en"):
    environment = {**os.environ, "LAYERTAP_LANG": language, "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "layertap", *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("arguments", "told"), WRONG.items())
def test_a_wrong_command_line_is_one_line(arguments, told):
    found = run(*arguments)
    assert found.returncode == 2
    assert len(found.stderr.strip().splitlines()) == 1
    assert told in found.stderr


def test_f4_a_wrong_command_line_is_answered_in_chinese():
    for arguments in [("diff", "a"), ("record", "x.py:make", "--steps", "two"), ("dif", "a")]:
        found = run(*arguments, language="zh")
        assert found.returncode == 2
        assert re.search(r"[\u4e00-\u9fff]", found.stderr)
        assert "expected" not in found.stderr.replace("unexpected", "")


def test_no_command_shows_the_help():
    found = run()
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
    assert "record" in found.stdout + found.stderr
