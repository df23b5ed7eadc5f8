"""Triggers: the ring reaches the disk when it matters, and the report names where it began."""

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import layertap as lt
from layertap import cli
from layertap.errors import BadArgument, CorruptRun
from layertap.watching import read_reports
from layertap.watching.trigger import Triggers, parse_triggers
from loops import break_backward, gpt, train

WHAT = ("output", "grad_output")


def watched(model, path, **options):
    return lt.watch(model, path=path, sites=options.pop("sites", "blocks.*"), **{"what": WHAT, "ring": 5, **options})


def test_nan_planted_in_a_backward_pass_at_step_120(tmp_path):
    model = gpt()
    now = [0]
    break_backward(model.blocks[2], lambda: now[0] == 120)
    with watched(model, tmp_path, keep_batch=True) as w:
        train(model, steps=130, each=lambda step: now.__setitem__(0, step))
    (report,) = w.reports
    assert (report.rule, report.step) == ("nonfinite", 120)
    birth = report.birth
    assert (birth.step, birth.where, birth.module) == (120, "backward", "blocks.2")
    assert birth.site == "blocks.1:grad_output"
    assert birth.before == "blocks.2:grad_output"
    assert "it first occurs in the backward pass of blocks.2" in str(report)
    assert report.steps == (116, 117, 118, 119, 120)
    run = lt.Run(tmp_path)
    assert list(run["blocks.0"].steps) == [116, 117, 118, 119, 120, 121, 122], "the ring, and two steps after it"
    assert run["blocks.2:grad_output"].at(step=120).statistics.nonfinite == 0
    assert run["blocks.1:grad_output"].at(step=120).statistics.nan > 0
    assert w.receipt.lost == 0
    assert read_reports(tmp_path) == (report,)


def test_the_batch_is_known_again_by_its_fingerprint_and_kept_if_asked(tmp_path):
    model = gpt()
    now = [0]
    break_backward(model.blocks[1], lambda: now[0] == 7)
    batches = []
    model.register_forward_pre_hook(lambda module, args: batches.append(args[0].clone()))
    with watched(model, tmp_path, ring=2, keep_batch=True) as w:
        train(model, steps=9, each=lambda step: now.__setitem__(0, step))
    from layertap.measure import measure

    (report,) = w.reports
    assert report.inputs[0]["fingerprint"] == f"{measure(batches[7]).fingerprint:016x}"
    kept = w.run[":input.0"].at(step=7).tensor()
    assert torch.equal(kept, batches[7])


def test_a_finer_selection_names_the_very_module(tmp_path):
    model = gpt()
    now = [0]
    break_backward(model.blocks[2], lambda: now[0] == 3)
    with watched(model, tmp_path, sites="**", what=("output", "grad_output", "param_grad")) as w:
        train(model, steps=5, each=lambda step: now.__setitem__(0, step))
    assert w.reports[0].birth.module.startswith("blocks.2.mlp")


def test_born_in_the_forward_pass(tmp_path):
    model = gpt()
    now = [0]
    block = model.blocks[1]
    forward = block.mlp.forward
    block.mlp.forward = lambda x: forward(x) / (0.0 if now[0] == 4 else 1.0)
    with watched(model, tmp_path) as w:
        train(model, steps=6, each=lambda step: now.__setitem__(0, step))
    birth = w.reports[0].birth
    assert (birth.step, birth.where, birth.module, birth.before) == (4, "forward", "blocks.1", "blocks.0")


def test_born_in_the_loss_the_batch_and_the_weights(tmp_path):
    def fit(path, spoil, **options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with lt.watch(model, path=path, sites="*", ring=2, **options) as w:
            for step in range(4):
                x, scale = torch.ones(2, 4), torch.tensor(1.0)
                if step == 2:
                    x, scale = spoil(model, x, scale)
                (model(x).mean() * scale).backward()
                optimizer.step()
                optimizer.zero_grad()
        return w.reports[0]

    nan = float("nan")
    loss = fit(tmp_path / "loss", lambda model, x, scale: (x, scale * nan))
    assert (loss.birth.where, loss.step, loss.birth.site) == ("loss", 2, "loss")
    assert loss.loss != loss.loss
    batch = fit(tmp_path / "batch", lambda model, x, scale: (x * nan, scale))
    assert (batch.birth.where, batch.step) == ("input", 2)

    def poison(model, x, scale):
        model[1].weight.data[0, 0] = nan
        return x, scale

    weights = fit(tmp_path / "weights", poison, what=("output", "param", "grad_output"))
    assert (weights.birth.where, weights.birth.module, weights.step) == ("weights", "1", 2)
    for report in (loss, batch, weights):
        assert read_reports(tmp_path / report.birth.where.replace("input", "batch"))[0].birth == report.birth


def test_a_loss_that_jumps(tmp_path):
    model = gpt()
    now = [0]
    forward = model.forward

    def jumping(ids, targets):
        logits, loss = forward(ids, targets)
        return logits, loss * (50 if now[0] == 30 else 1)

    model.forward = jumping
    with watched(model, tmp_path, triggers={"loss_spike": True}) as w:
        train(model, steps=35, each=lambda step: now.__setitem__(0, step))
    (report,) = w.reports
    assert (report.rule, report.step) == ("loss_spike", 30)
    assert "above the median" in report.reason
    assert report.birth is None


def test_gradients_that_explode(tmp_path):
    model = gpt()
    now = [0]
    with watched(model, tmp_path, what="param_grad", triggers={"grad_norm": 20}) as w:
        handle = model.head.register_forward_hook(lambda m, a, out: out * (1e4 if now[0] == 15 else 1))
        train(model, steps=18, each=lambda step: now.__setitem__(0, step))
        handle.remove()
    assert [(report.rule, report.step) for report in w.reports] == [("grad_norm", 15)]


def test_by_a_call_and_by_a_crash(tmp_path):
    model = gpt()
    with watched(model, tmp_path / "asked") as w:
        train(model, steps=8, each=lambda step: step == 6 and w.dump("looks odd"))
    (report,) = w.reports
    assert (report.rule, report.reason, report.steps) == ("asked", "looks odd", (1, 2, 3, 4, 5))

    def fail(step):
        if step == 3:
            raise RuntimeError("out of everything")

    model = gpt()
    with pytest.raises(RuntimeError, match="out of everything"), watched(model, tmp_path / "crash") as w:
        train(model, steps=8, each=fail)
    assert (w.reports[0].rule, w.reports[0].steps) == ("crash", (0, 1, 2))
    assert list(lt.Run(tmp_path / "crash")["blocks.0"].steps) == [0, 1, 2]


def test_a_ring_that_never_fires_writes_nothing_and_loses_nothing(tmp_path):
    model = gpt()
    with watched(model, tmp_path) as w:
        train(model, steps=20)
    assert w.receipt.records == 0
    assert w.receipt.lost == 0
    assert w.receipt.complete
    assert lt.Run(tmp_path).count == 0


def test_ring_and_schedule_together(tmp_path):
    model = gpt()
    now = [0]
    break_backward(model.blocks[1], lambda: now[0] == 12)
    with watched(model, tmp_path, ring=3, after=0, schedule="every 5") as w:
        train(model, steps=20, each=lambda step: now.__setitem__(0, step))
    assert list(w.run["blocks.0"].steps) == [0, 5, 10, 11, 12, 15]
    assert w.reports[0].steps == (11, 12), "step 10 is in the run already"
    assert w.receipt.steps == len(w.run["blocks.0"].steps), "steps that are in the run, not all that were tapped"


def test_tensors_of_the_ring_give_way_the_oldest_first(tmp_path):
    model = gpt()
    one = 4 * 16 * 32 * 4  # batch × length × width × float32; ids come to 1 KB a step
    with watched(
        model, tmp_path, sites="blocks.0", what="output", keep="tensor", ring=4, ring_budget=2 * one + 5000
    ) as w:
        train(model, steps=6)
        w.dump()
    kept = {record.step: record.kept for record in w.run["blocks.0"]}
    assert kept == {2: "stats", 3: "stats", 4: "tensor", 5: "tensor"}
    assert any("were dropped for its budget" in note for note in w.receipt.notes)
    assert w.run["blocks.0"].at(step=5).verify()


def test_what_keeps_spreading_is_told_once_and_again_only_after_it_was_gone(tmp_path):
    model = gpt()
    now = [0]
    break_backward(model.blocks[1], lambda: now[0] in (3, 4, 8))
    quiet = torch.optim.SGD(model.parameters(), lr=0.0)
    for parameter in model.parameters():  # so that the weights stay sound
        parameter.register_hook(lambda grad: grad.nan_to_num())
    with watched(model, tmp_path) as w:
        train(model, steps=10, each=lambda step: now.__setitem__(0, step), optimizer=quiet)
    assert [report.step for report in w.reports] == [3, 8]


def test_triggers_are_read_and_printed():
    assert parse_triggers(None) == Triggers()
    assert parse_triggers(False).text == "none"
    assert parse_triggers(["grad_norm"]).grad_norm == 10
    assert parse_triggers({"nonfinite": False}).nonfinite == 0
    with pytest.raises(BadArgument, match="loss_pike=True is not a trigger; use nonfinite, loss_spike"):
        parse_triggers({"loss_pike": True})


def test_a_mask_of_minus_infinity_is_no_fault(tmp_path):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.mask = nn.Linear(4, 4), nn.Identity()

        def forward(self, x):
            scores = self.linear(x)
            return self.mask(scores.masked_fill(torch.eye(4, dtype=torch.bool), float("-inf"))).softmax(-1)

    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lt.watch(model, path=tmp_path, sites="*", ring=2) as w:
        for _ in range(3):
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()
    assert w.reports == ()


def test_show_tells_of_triggers_and_of_a_damaged_report(tmp_path):
    model = gpt()
    with watched(model, tmp_path) as w:
        train(model, steps=3)
        w.dump("for the record")
    told = CliRunner().invoke(cli.app, ["show", str(tmp_path)])
    assert "asked at step 3: for the record" in told.output
    assert '"rule": "asked"' in CliRunner().invoke(cli.app, ["show", str(tmp_path), "--json"]).output
    (tmp_path / "triggers" / "000009-x.json").write_text('{"rule": 3}')
    with pytest.raises(CorruptRun, match=r"000009-x\.json: damaged, or not a trigger's report"):
        read_reports(tmp_path)
