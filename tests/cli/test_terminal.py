"""Nothing that a file, a folder or another library says can command the terminal."""

import json
import logging
import os
import re
import subprocess
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layertap import cli, errors
from layertap.compare import diff
from layertap.messages import printable, tr
from layertap.report.page import html_of
from layertap.site import Receipt, Site, SiteReceipt
from layertap.store import Run, RunWriter
from store.making import kept, receipt, record

HOSTILE = [
    "\x1b[31mred",
    "\x1b]0;owned\x07",
    "\x9b2J\x9d0;x\x9c",
    "\u202egnp.exe",
    "\u2066x\u2069",
    "[bold red]x[/]",
    "[/]",
    "[link=file:///x]y",
    "two\nlines",
    "\roverwritten",
    "half \ud800",
    "%s {site} {0}",
    "n" * 5000,
]
texts = st.sampled_from(HOSTILE) | st.text(
    st.sampled_from("a.\x1b[]m;0\x07\x08\x9b\x9d\u202a\u202e\u2066\u2069\u200f\ufeff\r\n\ud800/{}%é层"),
    min_size=1,
    max_size=30,
)


def clean(text: str) -> bool:
    """Whether a terminal would show every character of it, and obey none."""
    return all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text)


def run_with(folder: Path, text: str, keep: bool = True) -> Path:
    """A run in which everything that may hold a text holds this one."""
    silent = SiteReceipt(path=text, role="output", kind=text, why=text, skipped={text: 1})
    told: Receipt = replace(receipt(), sites=(*receipt().sites, silent), notes=(text,), error=text, lost=1)
    writer = RunWriter(folder, info={"model": text, "meta": {"mode": text}, "artefact": text, "runtime": text})
    sound = text.encode("utf-8", "replace").decode()  # what Parquet takes
    import numpy as np

    for number in range(4):
        array = np.full((2, 2), number, np.float32)
        row, raw = kept(array, str(Site(path=f"{sound}.{number}")), kind=sound, device=sound, phase=sound)
        writer.add(row, raw) if keep else writer.add(record(str(row.site), kind=sound))
    writer.problems.append(text)
    writer.close(told)
    return folder


def printed(capfd: pytest.CaptureFixture[str], *args: object) -> tuple[int, str]:
    """The exit code of a command line, and all that it printed."""
    before = sys.argv
    sys.argv = ["layertap", *map(str, args)]
    try:
        with pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        sys.argv = before
    out, err = capfd.readouterr()
    assert "Traceback" not in err, err
    return int(left.value.code or 0), out + err


@settings(max_examples=20, suppress_health_check=list(HealthCheck), deadline=None)
@given(text=texts)
def test_no_text_of_a_run_commands_the_terminal(tmp_path_factory, capfd, text):
    folder = tmp_path_factory.mktemp("runs")
    run = run_with(folder / "a", text)
    other = run_with(folder / "b", f"{text}x", keep=False)
    site = str(Run(run).sites[0])
    for command in (
        ("show", run),
        ("show", run, "--json"),
        ("show", run, site),
        ("show", run, text),
        ("show", run, "--rank", "7"),
        ("diff", run, other, "-v"),
        ("diff", run, other, "--json"),
        ("diff", run, other, "--html", folder / "page.html"),
        ("export", run, "-o", folder / "out", "--layout", "monitor"),
        ("export", run, "-o", folder / "out", "--layout", text),
        ("watch", "--plan", "--sites", text, "-o", folder / "w"),
    ):
        code, out = printed(capfd, *command)
        assert clean(out), (command, out)
        assert code in (0, 1, 2, 3)
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert clean(page)


@settings(max_examples=20, suppress_health_check=list(HealthCheck), deadline=None)
@given(text=texts)
def test_no_name_on_the_command_line_comes_back_raw(tmp_path_factory, capfd, text):
    name = text.replace("\0", "").replace("/", "_").lstrip("-") or "x"
    folder = tmp_path_factory.mktemp("names") / name
    for command in (
        ("show", name),
        ("show", folder),
        ("show", f"{folder}.pt2"),
        ("diff", name, folder),
        ("export", name, "-o", folder),
        ("record", f"{name}.py:make", "-o", folder),
        ("record", f"hf:{name}", "-o", folder),
        ("fault", name, name),
        ("watch", "--config", folder, "--", "true"),
        (name,),
        (f"--{name}",),
        ("show", f"--{name}", "x"),
    ):
        code, out = printed(capfd, *command)
        assert code == 2, (command, out)
        assert clean(out), (command, out)
        assert len(out) > 10


@pytest.mark.parametrize("text", HOSTILE[:8])
def test_objects_print_clean(tmp_path, text):
    run = Run(run_with(tmp_path / "a", text))
    report = diff(run, Run(run_with(tmp_path / "b", f"{text}x", keep=False)))
    for shown in (run, repr(run), run.receipt, run[run.sites[0]], report, tr("audit.note", text=text)):
        assert clean(str(shown)), shown
    assert clean(html_of(report))
    for kind in (errors.CorruptRun, errors.SiteNotFound, errors.RunExists, errors.MissingExtra, errors.NoMatch):
        assert clean(str(kind(text)))


def test_the_log_is_clean(caplog):
    with caplog.at_level(logging.WARNING):
        logging.getLogger("layertap").error("layertap: %s", "\x1b[2J\u202e")
    assert caplog.messages == [r"layertap: \x1b[2J\u202e"]


def test_a_styled_terminal_gets_styles_and_nothing_else(tmp_path):
    """On a real terminal rich's own codes are there, and those of the run's are not."""
    pty = pytest.importorskip("pty")
    run = run_with(tmp_path / "a", "\x1b]0;owned\x07\x9b2J\u202e")
    main, child = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "layertap", "show", str(run)],
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "xterm-256color"},
    ):
        os.close(child)
        shown = b""
        while True:
            try:
                part = os.read(main, 1 << 16)
            except OSError:  # the other end is closed
                break
            shown += part
            if not part:
                break
    os.close(main)
    text = shown.decode()
    assert "\x1b[" in text, "a terminal has styles"
    assert clean(re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", ""))


def test_json_stays_json(tmp_path, capfd):
    run = run_with(tmp_path / "a", '\x1b\x9b\u202e"\\')
    _, out = printed(capfd, "show", run, "--json")
    assert json.loads(out)["receipt"]["notes"] == ['\x1b\x9b\u202e"\\'], "data is not changed, only escaped"


@given(st.text())
def test_printable_keeps_what_can_be_read(text):
    shown = printable(text)
    assert clean(shown)
    assert printable(shown) == shown
    if clean(text):
        assert shown == text or any(unicodedata.category(c) in ("Co", "Cn") for c in text)
