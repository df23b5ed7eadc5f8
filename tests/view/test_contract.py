"""What the viewer promises to programs: marks in the page, JSON twins, and what it refuses (D8)."""

import json
import re
import subprocess
import sys
from collections import OrderedDict

import pytest

from layertap.store import Run
from view.making import SITES, take, viewer


def sites_of(html):
    return re.findall(r'data-site="([^"]*)"', html)


def test_the_page_has_the_verdict_and_every_site_in_order(compared, runs):
    status, headers, body = compared.ask("/")
    html = body.decode()
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert re.findall(r"data-verdict='(\w+)'", html) == ["fault"]
    assert sites_of(html) == [str(site) for site in Run(runs["a"]).sites]
    (first,) = re.findall(r'data-site="([^"]*)"[^>]* data-first', html)
    assert first == "blocks.3.down"


def test_json_twins(compared, runs):
    found = compared.json("/diff.json")
    assert (found["verdict"], found["first"], len(found["rows"])) == ("fault", "blocks.3.down", 75)
    site = compared.json("/site.json?site=blocks.3.down")
    assert site["a"]["shape"] == [2, 16, 48]
    assert site["verdict"] == "fault"
    assert all(line["index"][-1] == 7 for line in site["worst"])
    both = compared.json("/runs.json")["runs"]
    assert [run["path"] for run in both] == [runs["a"], runs["b"]]
    assert both[0]["receipt"]["records"] == both[0]["records"]
    part = compared.json("/diff.json?from=70&count=3")
    assert len(part["rows"]) == 3
    assert (part["total_rows"], part["first"]) == (75, "blocks.3.down")


def test_one_run_is_compared_with_nothing(alone):
    _, _, body = alone.ask("/")
    html = body.decode()
    assert re.findall(r"data-verdict='(\w+)'", html) == ["nonfinite"]
    assert re.findall(r'data-site="([^"]*)"[^>]* data-first', html) == ["blocks.5.up"]
    found = alone.json("/diff.json")
    assert (found["verdict"], found["candidate"], found["first"]) == ("none", None, "blocks.5.up")
    site = alone.json("/site.json?site=blocks.5.up")
    assert site["worst"][0]["a"] == "NaN"
    assert site["a"]["statistics"]["nan"] == 2 * 16


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.test"},
        {"Host": "evil.test:{port}"},
        {"Host": "127.0.0.1.evil.test:{port}"},
        {"Host": "127.0.0.1:1"},
        {"Host": None},
        {"Host": "user@127.0.0.1:{port}"},
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
)
def test_foreign_hosts_and_origins_read_nothing(compared, headers):
    filled = {name: value and value.format(port=compared.port) for name, value in headers.items()}
    for path in ("/", "/diff.json", "/static/viewer.js"):
        status, _, body = compared.ask(path, **filled)
        assert status in (400, 403, 421)
        assert b"blocks" not in body


def test_our_own_names_and_a_link_from_elsewhere_are_answered(compared):
    for host in ("127.0.0.1", "localhost", "LOCALHOST"):
        assert compared.ask("/runs.json", Host=f"{host}:{compared.port}")[0] == 200
    opened = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert compared.ask("/", **opened)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_other_methods_are_refused(compared, method):
    status, headers, _ = compared.ask("/", method=method)
    assert status == 405
    assert headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/viewer.css/../../app.py",
        "/etc/passwd",
        "//etc/passwd",
        "/static/guard.py",
        "/static/viewer.js%00.py",
        "/..;/",
    ],
)
def test_no_path_leads_to_a_file(compared, path):
    status, _, body = compared.ask(path)
    assert status in (400, 404)
    assert b"root:" not in body
    assert b"import" not in body


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/site.json?site=../../etc/passwd", 404),
        ("/site.json?site=", 404),
        ("/site.json?site=nothing", 404),
        ("/diff.json?a=7", 400),
        ("/diff.json?a=-1", 400),
        ("/diff.json?b=x", 400),
        ("/diff.json?step=1e9", 400),
        ("/diff.json?step=99999999999999999999999999", 400),
        ("/tile.png?site=blocks.0&map=q", 400),
    ],
)
def test_what_makes_no_sense_is_told_in_one_sentence(compared, path, status):
    found, _, body = compared.ask(path)
    assert found == status
    assert b"Traceback" not in body


def test_every_answer_says_what_a_browser_may_do_with_it(compared):
    for path in ("/", "/diff.json", "/nothing", "/static/site_table.js"):
        _, headers, _ = compared.ask(path)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
        assert not any(name.startswith("access-control") for name in headers)


def test_hostile_names_are_text(tmp_path):
    import torch
    from torch import nn

    name = "<img src=x onerror=alert(1)>'\""
    model = nn.Sequential(OrderedDict({name: nn.Linear(2, 2)}))
    run = take(model, tmp_path / "<script>alert(2)<", torch.ones(1, 2), sites="*")
    with viewer(run, run) as shown:
        for path in ("/", "/?b=none", "/?site=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E'%22"):
            status, _, body = shown.ask(path)
            assert status == 200
            assert b"<img src=x" not in body
            assert b"<script>alert" not in body


def test_reading_needs_no_torch_and_the_verb_prints_the_address(runs):
    code = """
import sys, threading, urllib.request
import uvicorn

sys.argv = ["layertap", "view", *sys.argv[1:], "--no-browser", "--json", "--port", "0"]
paths = ("", "diff.json", "site.html?site=blocks.3", "tile.png?site=blocks.3", "runs.json")


class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        threading.Thread(target=look, args=(self, sockets[0].getsockname()[1])).start()


def look(server, port):
    try:
        for path in paths:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}").close()
        assert "torch" not in sys.modules, "torch was imported"
        print("read", file=sys.stderr)
    finally:
        server.should_exit = True


uvicorn.Server = Server
from layertap.cli import main

main()
"""
    command = [sys.executable, "-c", code, runs["a"], runs["b"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "read" in done.stderr, done.stderr
    assert json.loads(done.stdout)["url"].startswith("http://127.0.0.1:")
    assert done.returncode == 0


def test_wrong_calls_end_with_one_sentence_and_2(tmp_path, runs):
    def call(*arguments):
        command = [sys.executable, "-m", "layertap", "view", "--no-browser", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    from layertap.view.serving import listening

    with listening(0) as sock:
        for arguments in (
            [],
            [str(tmp_path)],
            [runs["a"], "--port", str(sock.getsockname()[1])],
            [runs["a"], "--port=70000"],
        ):
            done = call(*arguments)
            assert done.returncode == 2
            assert done.stderr.startswith("layertap: ")
            assert "Traceback" not in done.stderr


def test_what_one_side_alone_has_stands_where_it_ran(tmp_path, runs):
    from layertap.cli.demo import decoder
    from view.making import ids

    small = take(decoder(12), tmp_path / "some", ids(), sites=[site for site in SITES if site != "norm"])
    with viewer(runs["a"], small) as shown:
        sites = sites_of(shown.ask("/")[2].decode())
    assert sites == [str(site) for site in Run(runs["a"]).sites]
