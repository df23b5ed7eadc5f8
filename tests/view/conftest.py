"""Runs of a small decoder, a viewer that shows them, and a real Chromium where there is one."""

import shutil

import pytest
import torch

from layertap.cli.demo import decoder
from view.making import ids, take, viewer

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """`a`, `b` with a row of one weight gone from block 3, `floor`, and `nan` with a NaN from block 5 on."""
    folder = tmp_path_factory.mktemp("runs")
    healthy, broken, nan = decoder(12), decoder(12), decoder(12)
    with torch.no_grad():
        broken.get_parameter("blocks.3.down.weight")[7] = 0
        nan.get_parameter("blocks.5.up.weight")[3] = float("nan")
    found = {"a": take(healthy, folder / "a", ids()), "floor": take(healthy.bfloat16(), folder / "floor", ids())}
    return found | {"b": take(broken.bfloat16(), folder / "b", ids()), "nan": take(nan, folder / "nan", ids())}


@pytest.fixture(scope="session")
def compared(runs):
    with viewer(runs["a"], runs["b"], floors=[runs["floor"]]) as shown:
        yield shown


@pytest.fixture(scope="session")
def alone(runs):
    with viewer(runs["nan"]) as shown:
        yield shown


@pytest.fixture(scope="session")
def chromium():
    """Debian's Chromium, driven by playwright; without either the tests that need it say so."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium):
    """A page in a fresh profile. Requests to other hosts, errors and warnings of the page fail the test."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    wrong, hosts = [], set()
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: hosts.add(request.url.split("/")[2].rpartition(":")[0]))
    yield page
    context.close()
    assert wrong == []
    assert hosts <= {"127.0.0.1", ""}
