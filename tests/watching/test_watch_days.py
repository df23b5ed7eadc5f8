"""What a training of days needs: live numbers, rules with actions, orders by a file, ranks beside each other."""

import json
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.compare.ranks import compare_ranks
from layertap.errors import BadArgument, NoMatch, RunError
from layertap.watching import control
from layertap.watching.folder import check_writable
from layertap.watching.rules import parse_rules
from layertap.watching.trigger import Step
from loops import batches, gpt, train


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def fit(model, steps, each=lambda step: None, optimizer=None, seed=1):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        each(step)
        model(torch.randn(2, 4, generator=generator)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# Triggers that name a place.


def test_the_norm_of_activation_gradients_holds_every_micro_batch(tmp_path):
    model = gpt()
    scale = [1.0]
    model.head.register_forward_hook(lambda module, args, output: output * scale[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = batches(count=40)
    with lt.watch(model, path=tmp_path, sites="blocks.*", triggers={"grad_norm": 10}) as w:
        for step in range(16):
            for micro in range(2):
                scale[0] = 1e3 if (step, micro) == (14, 0) else 1.0  # the first micro-batch of two
                model(*data[2 * step + micro : 2 * step + micro + 2])[1].backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [(report.rule, report.step) for report in w.reports] == [("grad_norm", 14)]


def test_a_loss_that_jumps_names_the_module_that_stands_out(tmp_path):
    model = gpt()
    spoil = [False]
    model.blocks[2].register_forward_hook(lambda module, args, output: output * 1e4 if spoil[0] else output)
    model.norm = nn.Identity()
    with lt.watch(model, path=tmp_path, sites="blocks.*", triggers={"loss_spike": True}) as w:
        train(model, steps=25, each=lambda step: spoil.__setitem__(0, step == 20))
    (report,) = w.reports
    assert (report.rule, report.step, report.site) == ("loss_spike", 20, "blocks.2")
    assert "the first site that differs from its last steps is blocks.2" in str(report)


def test_exploding_gradients_name_the_module_where_they_begin(tmp_path):
    model = gpt()
    now = [0]

    def boost(module, grads, _):
        return (grads[0] * 1e4,) if now[0] == 20 else None

    model.blocks[1].register_full_backward_hook(boost)
    with lt.watch(model, path=tmp_path, sites="blocks.*", triggers={"grad_norm": 20}) as w:
        train(model, steps=23, each=lambda step: now.__setitem__(0, step))
    assert w.reports[0].step == 20
    assert w.reports[0].site == "blocks.0:grad_output"


def test_reports_say_their_rank_where_there_are_several(tmp_path, monkeypatch):
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        with lt.watch(net(), path=tmp_path, sites="*") as w:
            fit(w.model, 2, each=lambda step, w=w: step == 1 and w.dump("why"))
        assert f"asked at step 1, rank {rank}: why" in str(w.reports[0])


# Gradients as they are used.


def test_the_gradient_that_the_optimizer_uses_is_the_clipped_one(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lt.watch(model, path=tmp_path, sites="0", what=("param_grad", "step_grad"), keep="tensor") as w:
        for _ in range(2):
            model(torch.ones(1, 4)).pow(2).sum().mul(100).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        used = model[0].weight.grad.clone()
        optimizer.step()
    assert torch.equal(w.run["0:param_grad.weight.step"].tensor(), used)
    assert w.run["0:param_grad.weight@1"].statistics.l2 > 1e3 * used.norm()


# Live numbers.


def test_scalars_are_in_the_run_while_it_goes_on_and_a_line_tells(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("layertap.watching.scalars.LEAST", 0.0)
    with lt.watch(net(), path=tmp_path, sites="*", progress=1e-9) as w:
        fit(w.model, 3)
        w.recorder.flush()
        lines = [json.loads(line) for line in (tmp_path / "scalars.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == [0, 1, 2]
        assert lines[2]["learning_rate"] == 0.01
        assert lines[2]["loss"] == pytest.approx(w.run["loss"].at(step=2).statistics.mean)
        assert lines[2]["seconds"] > 0
        assert lines[2]["gradient_norm"] > 0
    assert "layertap: step 2, loss" in capsys.readouterr().err


def test_tensorboard_gets_scalars_and_records_as_they_come(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with lt.watch(net(), path=tmp_path / "run", sites="*", tensorboard=str(tmp_path / "tb")) as w:
        fit(w.model, 3)
    board = accumulator.EventAccumulator(str(tmp_path / "tb"))
    board.Reload()
    tags = board.Tags()["scalars"]
    assert {"training/loss", "training/learning_rate", "training/gradient_norm", "0/std", "0:grad_output/l2"} <= set(
        tags
    )
    assert [event.step for event in board.Scalars("training/loss")] == [0, 1, 2]


def test_live_scalars_that_fail_harm_nothing(tmp_path, caplog):
    with lt.watch(net(), path=tmp_path, sites="*", ring=2, schedule=1) as w:
        (tmp_path / "scalars.jsonl").mkdir()
        fit(w.model, 3)
    assert w.receipt.complete
    assert list(w.run["0"].steps) == [0, 1, 2]
    assert "live scalars stopped" in caplog.text


# Rules.


def test_rules_about_sites_fire_once_and_name_the_site(tmp_path):
    model = net()
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    rules = ["dead_units", {"rule": "low", "sites": "0", "when": "max < -50", "steps": 2}]
    with lt.watch(model, path=tmp_path, sites="*", rules=rules) as w:
        fit(model, 4)
    found = {report.rule: (report.step, report.site) for report in w.reports}
    assert found["dead_units"] == (0, "1")
    assert found["low"] == (1, "0"), "two steps on end, and not again"
    assert len(w.reports) == 2


def test_vanishing_gradients_and_updates_out_of_range(tmp_path):
    model = net()
    model[1].register_full_backward_hook(lambda module, grads, _: (grads[0] * 1e-9,))
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 50.0}], lr=0.1
    )
    options = {"what": ("grad_output", "update"), "rules": ["vanishing_gradient", "update_ratio"]}
    with lt.watch(model, path=tmp_path, sites="*", **options) as w:
        fit(model, 1, optimizer=optimizer)
    (report,) = w.reports
    assert "the gradient has vanished at 0:grad_output" in report.reason
    assert "an update of 2:param.weight.update is" in report.reason


def test_a_loss_that_does_not_fall_and_a_rule_of_one_s_own(tmp_path):
    def odd(step: Step, records):
        return "it is step 3" if step.number == 3 else None

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rules = [{"rule": "loss_plateau", "steps": 3}, odd]
    with lt.watch(model, path=tmp_path, sites="*", rules=rules) as w:
        for _ in range(8):
            model(torch.ones(2, 4)).pow(2).mean().backward()
            optimizer.step()
    found = {report.rule: report.step for report in w.reports}
    assert found["odd"] == 3
    assert "loss_plateau" in found


def test_rules_that_are_none_are_told_before_the_training(tmp_path):
    for rules, told in (
        ("ded_units", "no rule 'ded_units'"),
        ({"rule": "x", "when": "biggest > 3"}, "expected a statistic"),
        ({"rule": "x", "when": "max > 3", "action": "shout"}, "choose from 'snapshot', 'stop'"),
        ({"rule": "no.such.module:f"}, "cannot be imported"),
        ({"rule": "dead_units", "limit": 3}, "no option 'limit'"),
    ):
        with pytest.raises(BadArgument, match=told):
            lt.watch(net(), path=tmp_path, rules=rules)
    with pytest.raises(NoMatch):
        lt.watch(net(), path=tmp_path, rules={"rule": "dead_units", "sites": "layrs.*"})
    assert len(parse_rules(["dead_units", "loss_plateau"])) == 2


def test_a_command_and_a_url_are_called_with_the_report(tmp_path):
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    out = tmp_path / "told.json"
    script = tmp_path / "page.py"
    script.write_text(f"import os, sys; open({str(out)!r}, 'w').write(os.environ['LAYERTAP_STEP'] + sys.stdin.read())")
    actions = [f"command: {sys.executable} {script}", f"http://127.0.0.1:{server.server_port}/hook"]
    try:
        with lt.watch(net(), path=tmp_path / "run", sites="*", actions=actions) as w:
            fit(w.model, 2, each=lambda step: step == 1 and w.dump("look"))
        for thread in threading.enumerate():
            if thread.name == "layertap-action":
                thread.join(30)
    finally:
        server.shutdown()
        server.server_close()
    assert posted[0]["reason"] == "look"
    assert posted[0]["run"] == str(tmp_path / "run")
    assert out.read_text().startswith("1{")


STOPPING = """
import pathlib, sys, torch
from torch import nn
import layertap as lt
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = pathlib.Path(sys.argv[1])
HANDLER
with lt.watch(model, path=run, sites="*", OPTIONS) as w:
    for step in range(20_000):
        ORDER
        x = torch.full((2, 4), float("nan")) if step == NAN else torch.randn(2, 4)
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, flush=True)
"""
SAVES = """
import signal
def saved(*_):
    print("checkpoint saved", flush=True)
    raise SystemExit(7)
signal.signal(signal.SIGTERM, saved)
"""


def stopped(tmp_path, options, handler="", order="", nan=-1):
    """A training in a process of its own that is stopped by its watch."""
    text = STOPPING.replace("HANDLER", handler).replace("OPTIONS", options).replace("ORDER", order or "pass")
    script = tmp_path / "train.py"
    script.write_text(text.replace("NAN", str(nan)))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run")], capture_output=True, text=True, timeout=120, check=False
    )
    steps = done.stdout.count("step ")
    assert (tmp_path / "run").is_dir(), done.stderr
    return done, steps, lt.Run(tmp_path / "run")


def test_stop_ends_the_training_as_a_scheduler_does_and_keeps_what_was_recorded(tmp_path):
    done, steps, run = stopped(tmp_path, 'triggers={"nonfinite": True}, actions=["stop"]', nan=5)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert 5 <= steps < 20_000
    assert "stops the training, as requested" in done.stderr
    assert {0, 5} <= set(run["0"].steps)


def test_a_training_that_handles_sigterm_saves_and_ends_in_its_own_way(tmp_path):
    done, steps, run = stopped(tmp_path, 'triggers={"nonfinite": True}, actions=["stop"]', handler=SAVES, nan=5)
    assert (done.returncode, "checkpoint saved" in done.stdout) == (7, True), done.stderr
    assert 5 <= steps < 20_000
    assert {0, 5} <= set(run["0"].steps)


def test_a_training_is_stopped_by_a_file_in_its_run(tmp_path):
    order = 'step == 3 and (run / "watch.toml").write_text("stop = true")'
    done, steps, run = stopped(tmp_path, 'schedule="every 1"', order=f"{order}; import time; time.sleep(0.01)")
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert 3 <= steps < 20_000
    assert {0, 3} <= set(run["0"].steps)


# Orders by a file in the run.


def test_a_running_watch_is_changed_through_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "EVERY", 0.0)
    orders = {2: 'schedule = "every 3"\nsites = "x"', 6: 'schedule = "evry 1"', 8: 'dump = "by file"'}

    def each(step):
        if step in orders:
            (tmp_path / "watch.toml").write_text(f"[watch]\n{orders[step]}\n")

    with lt.watch(net(), path=tmp_path, sites="*", schedule="every 1") as w:
        fit(w.model, 11, each)
    assert list(w.run["0"].steps) == [0, 1, 2, 3, 6, 9]
    notes = " ".join(w.receipt.notes)
    assert "changed from step 3 on: schedule = 'every 3'; sites cannot be changed while it runs" in notes
    assert "not changed: schedule 'evry 1'" in notes
    assert [report.reason for report in w.reports] == ["by file"]


def test_a_folder_that_cannot_be_written_is_told_before_anything_starts(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="no run can be written here"):
        check_writable(tmp_path / "file" / "run")
    check_writable(tmp_path / "new")
    assert not (tmp_path / "new").exists()


# Ranks.


def as_rank(monkeypatch, rank, path, *, seed, change=lambda model, step: None, world=2):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))
    model = net()
    with lt.watch(model, path=path, sites="*", what=("output", "grad_output", "param")) as w:
        fit(model, 4, each=lambda step: change(model, step), seed=seed)
    assert w.path == path
    return w


def test_ranks_are_held_against_each_other(tmp_path, monkeypatch):
    def drift(model, step):
        if step == 2:
            with torch.no_grad():
                model[2].bias.add_(1.0)

    for rank in (0, 1):
        as_rank(monkeypatch, rank, tmp_path / "same", seed=1)
        as_rank(monkeypatch, rank, tmp_path / "parted", seed=1, change=drift if rank else lambda model, step: None)
    same = compare_ranks(tmp_path / "same")
    assert same.steps == 4
    assert same.compared > 0
    assert "ranks.parted" not in [note.code for note in same.findings]
    assert "all ranks had the same batch in 4 of 4 steps" in str(same)
    parted = compare_ranks(tmp_path / "parted")
    assert "the ranks differ: from step 2 on 2:param.bias is not the same on ranks 0 | 1" in str(parted)
    assert len(parted.losses) == 2
