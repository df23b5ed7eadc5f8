"""For pytest: the fixture `layertap_golden`, and `--layertap-update`, which writes goldens in place of comparing.

`--layertap-engine ray` compares by the workers of Ray, which is started once for the session.

    def test_model(layertap_golden):
        with layertap.record(model) as rec:
            model(**inputs)
        layertap_golden(rec)

pytest finds this by its entry point and loads it at every start. So nothing here imports torch or pyarrow until a test
asks for a comparison.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.testing.session import GoldenSession, begin, end

SUFFIX = ".layertap"
LONGEST = 120
"""Characters of a file's name; file systems end at 255 bytes."""

_SESSION = pytest.StashKey[GoldenSession]()
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+=,-]")


@pytest.fixture
def layertap_golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compares a run with this test's golden: `layertap_golden(rec, name=None, *, floor=None)`.

    It is at `golden/<module>/<test name>.layertap` beside the test's file, or there under a given name.
    """
    folder = request.path.parent / "golden" / request.path.stem
    default = file_name(request.node.nodeid.partition("::")[2] or request.node.name)
    used: set[str] = set()

    def match(run: Any, name: str | None = None, *, floor: Any = None) -> None:
        __tracebackhide__ = True
        if name is None and default in used:
            raise BadArgument(tr("pytest.golden_twice"))
        if name is not None and (not name or _UNSAFE.search(name) or name.startswith(".")):
            raise BadArgument(tr("pytest.golden_name", name=name))
        from layertap.testing.matching import assert_matches

        used.add(name or default)
        assert_matches(run, folder / f"{name or default}{SUFFIX}", floor=floor)

    return match


def file_name(test: str) -> str:
    """A test's name as a file may be called; where something had to go, a hash keeps two tests apart.

    >>> file_name("TestAttention::test_model[sdpa-2]")
    'TestAttention.test_model-sdpa-2'
    >>> file_name("test_model[a/b]"), file_name("test_model[a:b]")
    ('test_model-a_b-941f9ffc', 'test_model-a_b-11f95043')
    """
    outer, bracket, inner = test.partition("[")
    name = outer.replace("::", ".") + (f"-{inner.removesuffix(']')}" if bracket else "")
    safe = _UNSAFE.sub("_", name)
    if safe == name and len(safe) <= LONGEST:
        return safe
    return f"{safe[:LONGEST]}-{hashlib.sha256(test.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("layertap", tr("pytest.group"))
    group.addoption("--layertap-update", action="store_true", help=tr("pytest.update"))
    group.addoption("--layertap-engine", metavar="NAME", help=tr("cli.engine"))
    group.addoption("--layertap-address", metavar="HOST:PORT", help=tr("cli.address"))


def pytest_configure(config: pytest.Config) -> None:
    session = config.stash[_SESSION] = GoldenSession(
        update=bool(config.getoption("--layertap-update")),
        engine=config.getoption("--layertap-engine"),
        address=config.getoption("--layertap-address"),
    )
    begin(session)


def pytest_unconfigure(config: pytest.Config) -> None:
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.close()
        end(session)


# With xdist the tests run in workers, and the summary is printed by the process that they report to.


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        ours = session.config.stash[_SESSION]
        output["layertap"] = {"written": ours.written, "unchanged": ours.unchanged}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    sent = getattr(node, "workeroutput", {}).get("layertap")
    if sent:
        ours = node.config.stash[_SESSION]
        ours.written |= sent["written"]
        ours.unchanged += sent["unchanged"]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    session = config.stash[_SESSION]
    if not (session.update or session.written):
        return
    names = [f"{_short(path, config.rootpath)} ({fate})" for path, fate in sorted(session.written.items())]
    text = tr("pytest.written", count=_count(len(names)))
    text += f": {', '.join(names)}" if names else ""
    unchanged = set(session.unchanged) - set(session.written)
    text += tr("pytest.unchanged", count=len(unchanged)) if unchanged else ""
    terminalreporter.write_line(text)


def _count(number: int) -> str:
    return tr("pytest.baselines" if number != 1 else "pytest.baseline", number=number or tr("pytest.no"))


def _short(path: str, root: Path) -> str:
    relative = os.path.relpath(path, root)
    return path if relative.startswith("..") else relative
