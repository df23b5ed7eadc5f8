"""Which training it is, whose loss, which batch, which phase: what a watch must not mix up."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layertap as lt
from layertap.compare.training import diff_training
from layertap.watching.find import models_of, unwrap
from loops import batches, gpt, train


def net(width=4, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, width))


def fit(model, steps=3, optimizer=None, seed=1):
    optimizer = optimizer or torch.optim.Adam(model.parameters())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        model(torch.randn(2, model[0].in_features, generator=generator)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def steps_of(run, site="0"):
    return list(run[site].steps)


# One run for each training.


def test_folds_of_one_process_are_a_run_each_and_each_has_its_receipt(tmp_path):
    for fold in range(3):
        with lt.watch(net(seed=fold), path=tmp_path / "run", sites="*") as w:
            fit(w.model, steps=2 + fold)
    runs = [lt.Run(tmp_path / name) for name in ("run", "run-2", "run-3")]
    assert [steps_of(run) for run in runs] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert [len(run.sessions) for run in runs] == [1, 1, 1]
    assert all(run.receipt and run.receipt.complete for run in runs)
    assert "run contains another training; this one writes to" in " ".join(runs[1].receipt.notes)


def test_another_model_does_not_go_on_with_a_run_whatever_its_optimizer_says(tmp_path):
    with lt.watch(net(), path=tmp_path / "run", sites="*") as w:
        optimizer = fit(w.model)
    state = optimizer.state_dict()
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4, bias=True), nn.Linear(4, 4))
    optimizer = torch.optim.Adam(other.parameters())
    state["param_groups"] = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict(state)
    with lt.watch(other, path=tmp_path / "run", sites="*"):
        fit(other, optimizer=optimizer)
    assert steps_of(lt.Run(tmp_path / "run")) == [0, 1, 2]
    assert steps_of(lt.Run(tmp_path / "run-2")) == [3, 4, 5]


def test_the_optimizer_s_state_proves_that_a_training_goes_on(tmp_path):
    first = net()
    with lt.watch(first, path=tmp_path / "run", sites="*"):
        saved = fit(first).state_dict()
    second = net()
    second.load_state_dict(first.state_dict())
    optimizer = torch.optim.Adam(second.parameters())
    with lt.watch(second, path=tmp_path / "run", sites="*") as w:
        optimizer.load_state_dict(saved)
        fit(second, optimizer=optimizer)
    assert w.path == tmp_path / "run"
    assert steps_of(w.run) == [0, 1, 2, 3, 4, 5]
    assert len(w.run.sessions) == 2


def test_momentum_proves_it_too_and_is_numbered_on(tmp_path):
    model, saved = net(), None
    for _ in range(2):
        with lt.watch(model, path=tmp_path / "run", sites="*") as w:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            if saved is not None:
                optimizer.load_state_dict(saved)
            saved = fit(model, optimizer=optimizer).state_dict()
    assert steps_of(w.run) == [0, 1, 2, 3, 4, 5]
    assert "numbered on from 3" in " ".join(w.receipt.notes)


@pytest.mark.parametrize("built_first", [False, True])
def test_weights_set_anew_and_a_new_optimizer_are_another_training_of_the_same_model(tmp_path, built_first):
    model = net()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    loader = DataLoader(TensorDataset(torch.randn(4, 4)), batch_size=2)
    with lt.watch(model, path=tmp_path / "run", sites="*") as w:
        for _ in range(2):
            if not built_first:
                model.load_state_dict(start)
            optimizer = torch.optim.Adam(model.parameters())
            if built_first:
                model.load_state_dict(start)
            for (batch,) in loader:
                model(batch).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    assert w.runs == [tmp_path / "run"]
    assert w.path == tmp_path / "run-2"
    one, two = lt.Run(tmp_path / "run"), w.run
    assert steps_of(one) == steps_of(two) == [0, 1]
    assert one.receipt.complete
    assert one["0"].at(step=0).record.fingerprint == two["0"].at(step=0).record.fingerprint


def test_a_second_phase_with_an_optimizer_of_its_own_is_the_same_training(tmp_path):
    model = net()
    with lt.watch(model, path=tmp_path / "run", sites="*") as w:
        fit(model)
        fit(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert not w.runs
    assert steps_of(w.run) == [0, 1, 2, 3, 4, 5]


def test_replace_does_not_remove_what_this_process_has_recorded(tmp_path):
    for fold in range(2):
        with lt.watch(net(seed=fold), path=tmp_path / "run", sites="*", exists="replace"):
            fit(net(seed=fold))
            fit(net(seed=fold))
    assert (tmp_path / "run-2" / "run.json").exists()


# Whose loss.


def test_each_model_s_run_gets_its_own_losses(tmp_path):
    maker, judge = net(seed=0), net(seed=1)
    of_maker, of_judge = (torch.optim.Adam(m.parameters()) for m in (maker, judge))
    told = []
    with (
        lt.watch(maker, path=tmp_path / "maker", sites="*") as a,
        lt.watch(judge, path=tmp_path / "judge", sites="*") as b,
    ):
        for _ in range(3):
            fake = maker(torch.randn(2, 4))
            loss = judge(fake.detach()).pow(2).mean()
            loss.backward()
            told.append(("judge", loss.item()))
            of_judge.step()
            of_judge.zero_grad()
            loss = judge(fake).abs().mean()
            loss.backward()
            told.append(("maker", loss.item()))
            of_maker.step()
            of_maker.zero_grad()
            of_judge.zero_grad()
    losses = lambda run: [r["mean"] for r in run.table(["path", "mean"]).to_pylist() if r["path"] == "loss"]  # noqa: E731
    assert losses(a.run) == pytest.approx([loss for name, loss in told if name == "maker"])
    reached = losses(b.run)
    assert reached[0] == pytest.approx(told[0][1])
    assert set(steps_of(b.run, "loss")) >= {0, 1, 2}


def test_a_loop_by_autograd_grad_still_has_steps(tmp_path):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    with lt.watch(model, path=tmp_path, sites="*") as w:
        for _ in range(3):
            gradients = torch.autograd.grad(model(torch.randn(2, 4)).sum(), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    assert steps_of(w.run) == [0, 1, 2]


def test_lbfgs_evaluates_its_closure_within_a_step(tmp_path):
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        return loss

    with lt.watch(model, path=tmp_path, sites="*") as w:
        for _ in range(2):
            optimizer.step(closure)
    assert steps_of(w.run) == [0, 1]
    assert len(w.run["0@1"]) == 2


# Which phase.


@pytest.mark.parametrize("decorated", [False, True])
def test_validation_under_no_grad_without_eval_is_validation(tmp_path, decorated):
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(batches(count=3), batch_size=4)
    held_out = DataLoader(batches(seed=9, count=2), batch_size=4)

    def inside():
        for ids, targets in held_out:
            with torch.no_grad():
                model(ids, targets)

    validate = torch.no_grad()(inside) if decorated else inside
    with lt.watch(model, path=tmp_path, sites="norm", phases="train,eval") as w:
        for _ in range(2):
            for ids, targets in loader:
                model(ids, targets)[1].backward()
                optimizer.step()
                optimizer.zero_grad()
            validate()
    rows = w.run.table(["site", "step", "epoch", "batch", "phase"]).to_pylist()
    rows = [row for row in rows if row["site"].partition("@")[0] == "norm"]
    trained = [(r["site"], r["step"], r["epoch"], r["batch"]) for r in rows if r["phase"] == "train"]
    expected = [(0, 1, 0), (1, 1, 1), (2, 1, 2), (3, 2, 0), (4, 2, 1), (5, 2, 2)]
    assert trained == [("norm", *place) for place in expected], "no phantom step or epoch, no call shifted"
    assert len(rows) - len(trained) == 4
    assert {r["epoch"] for r in rows} == {1, 2} or not decorated


def test_what_runs_under_no_grad_inside_a_training_pass_is_training(tmp_path):
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.frozen, self.tail = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            with torch.no_grad():
                x = self.frozen(x)
            return self.tail(self.head(x))

    model = Frozen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lt.watch(model, path=tmp_path, sites="*", what="output") as w:
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    assert steps_of(w.run, "frozen") == [0, 1]


def test_a_phase_that_is_left_out_is_counted(tmp_path):
    model = net()
    with lt.watch(model, path=tmp_path, sites="*") as w:
        fit(model)
        with torch.no_grad():
            model(torch.randn(2, 4))
    assert steps_of(w.run) == [0, 1, 2]
    assert any("calls of modules were left out" in note for note in w.receipt.notes)


# Which batch.


class Task(nn.Module):
    """As Lightning's modules are: its own `forward` is never called."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch):
        return self.net(batch["x"]).pow(2).mean()


class Rows(torch.utils.data.Dataset):
    def __init__(self, broken=()):
        self.x = torch.randn(8, 4, generator=torch.Generator().manual_seed(3))
        self.x[list(broken)] = float("nan")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "index": index}


def fit_task(path, order, broken=(), **options):
    torch.manual_seed(0)
    model = Task()
    optimizer = torch.optim.Adam(model.parameters())
    with lt.watch(model, path=path, sites="net.*", **options) as w:
        for batch in DataLoader(Rows(broken), batch_size=2, sampler=order):
            model.training_step(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return w


def test_another_shuffle_is_the_data_s_and_no_fault_where_the_model_is_never_called(tmp_path):
    fit_task(tmp_path / "a", [0, 1, 2, 3, 4, 5, 6, 7])
    fit_task(tmp_path / "b", [0, 1, 2, 3, 6, 7, 4, 5])
    report = diff_training(tmp_path / "a", tmp_path / "b")
    assert report.verdict == "inconclusive"
    assert report.first.is_input
    assert report.first.step == 2
    assert "the batches differ from step 2 on" in str(report)


def test_a_batch_with_nan_is_blamed_on_the_batch(tmp_path):
    w = fit_task(tmp_path, range(8), broken=[4])
    (report,) = w.reports
    assert report.step == 2
    assert report.birth.where == "input"
    assert [item["name"] for item in report.inputs] == ["batch.x", "batch.index"]


def test_where_the_batch_is_not_known_a_nan_may_have_come_with_it(tmp_path):
    torch.manual_seed(0)
    model = Task()
    optimizer = torch.optim.Adam(model.parameters())
    with lt.watch(model, path=tmp_path, sites="net.*") as w:
        for step in range(2):
            model.training_step({"x": torch.full((2, 4), float("nan") if step else 1.0)}).backward()
            optimizer.step()
    assert "no batch was recorded, so it may be in the data" in str(w.reports[0])


def test_where_the_batch_is_not_known_a_difference_from_the_first_site_on_is_no_fault(tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        torch.manual_seed(0)
        model = Task()
        optimizer = torch.optim.Adam(model.parameters())
        with lt.watch(model, path=tmp_path / name, sites="net.*"):
            generator = torch.Generator().manual_seed(seed)
            for _ in range(2):
                model.training_step({"x": torch.randn(2, 4, generator=generator)}).backward()
                optimizer.step()
    report = diff_training(tmp_path / "a", tmp_path / "b")
    assert report.verdict == "inconclusive"
    assert "no batch was recorded" in str(report)


def test_whole_numbers_are_kept_only_if_asked(tmp_path):
    for keep in (False, True):
        with lt.watch(gpt(), path=tmp_path / str(keep), sites="norm", keep_batch=keep) as w:
            train(w.model, steps=2)
        kept = {record.kept for record in w.run.inputs}
        assert kept == ({"tensor"} if keep else {"stats"})
        assert (w.receipt.bytes > 0) is keep


# Wrappers.


class MyDDP(nn.parallel.DistributedDataParallel):
    def __init__(self, module):
        nn.Module.__init__(self)
        self.module = module

    def forward(self, *args):
        return self.module(*args)


def test_a_class_made_from_ddp_is_unwrapped():
    model = net()
    wrapped = MyDDP(model)
    assert unwrap(wrapped)[0] is model
    (found,) = models_of(torch.optim.SGD(wrapped.parameters()))
    assert unwrap(found)[0] is model


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo asks for it where a part takes an activation
@pytest.mark.parametrize("way", ["wrapper", "in_place", "part"])
def test_compiled_after_the_optimizer_was_made_and_step_0_is_there(tmp_path, way):
    torch._dynamo.reset()
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    with lt.watch(model, path=tmp_path, sites="blocks.*", what=("output", "param_grad")) as w:
        called = model
        if way == "wrapper":
            called = torch.compile(model, backend="eager")
        elif way == "in_place":
            model.compile(backend="eager")
        else:
            model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
        train(called, steps=2, optimizer=optimizer)
    assert steps_of(w.run, "blocks.3") == [0, 1]
    if way == "part":  # no call tells when it takes its place in the model
        assert steps_of(w.run, "blocks.1") == [1]
        assert "step 0 lacks the values inside the parts" in " ".join(w.receipt.notes)
    else:
        assert steps_of(w.run, "blocks.1") == [0, 1]
    torch._dynamo.reset()


def test_monitor_of_a_compiled_model_knows_its_layers_by_name(tmp_path):
    torch._dynamo.reset()
    model = torch.compile(net(), backend="eager")
    monitor = lt.Monitor(model, ["0", "_orig_mod.2"], [1], tmp_path, batch_indices=[0])
    monitor.set_epoch(1)
    monitor.set_batch_idx(0)
    output = model(torch.ones(2, 4))
    found = monitor.get_single_data()
    files = monitor.save_single_outputs()
    monitor.remove_hooks()
    assert torch.equal(found["_orig_mod.2"]["data"][1, 0], output.detach())
    assert found["0"]["output_shape"] == [2, 8]
    assert len(files) == 2
    torch._dynamo.reset()


# The disk.


def test_the_disk_budget_thins_old_steps_and_keeps_what_a_trigger_brought(tmp_path, monkeypatch):
    from layertap.store import writer

    monkeypatch.setattr(writer, "SHARD_RECORDS", 20)
    model = gpt()
    with lt.watch(model, path=tmp_path, sites="blocks.*", what="output", keep="tensor", disk="600KiB") as w:
        train(model, steps=60)
    run = w.run
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.suffix in (".parquet", ".safetensors"))
    assert size < 700 * 1024
    assert not run.partial, run.problems
    steps = steps_of(run, "blocks.0")
    assert steps[0] == 0
    assert steps[-3:] == [57, 58, 59], "the newest are all there"
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert gaps[0] > gaps[-1] == 1, "the older, the farther apart"
    assert all(run["blocks.3"].at(step=step).tensor().shape == (4, 16, 32) for step in steps)
    assert any("removed for the disk budget" in note for note in w.receipt.notes)
    assert w.receipt.lost == 0
    assert w.receipt.records == run.count


def test_earlier_sessions_are_thinned_too_and_the_run_is_still_whole(tmp_path, monkeypatch):
    from layertap.store import writer

    monkeypatch.setattr(writer, "SHARD_RECORDS", 20)
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        with lt.watch(model, path=tmp_path, sites="blocks.*", what="output", keep="tensor", disk="600KiB") as w:
            train(model, steps=20, optimizer=optimizer)
    assert len(w.run.sessions) == 2
    assert not w.run.partial, w.run.problems
    assert w.receipt.lost == 0
