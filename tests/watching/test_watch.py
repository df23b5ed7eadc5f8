"""`watch` over real loops: it counts right, takes what it should, and the loop does not notice."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import layertap as lt
from layertap.capture import taps
from layertap.errors import BadArgument, NoMatch
from layertap.watching import clock, update_ratios
from loops import batches, gpt, train

BLOCKS = "blocks.*"
TESTS = Path(__file__).parents[1]


def steps_of(run, site):
    return list(run[site].steps)


def nothing_left(model):
    """torch and the model are as they were."""
    hooks = [
        hook
        for module in model.modules()
        for hook in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    ]
    hooks += [p._post_accumulate_grad_hooks or {} for p in model.parameters()]
    assert not any(hooks)
    assert taps.attached() == 0
    assert clock.listeners() == ()
    assert torch.autograd.backward.__module__ == "torch.autograd"
    assert not hasattr(torch.autograd.backward, "__wrapped__")
    assert not hasattr(torch.utils.data.dataloader._BaseDataLoaderIter.__next__, "__wrapped__")
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks


def test_200_steps_give_the_same_losses_and_unscheduled_steps_are_not_hooked(tmp_path):
    bare = train(gpt(), steps=200)
    model = gpt()
    hooked = []
    what = ("output", "grad_output", "param_grad", "update", "optimizer")
    with lt.watch(model, path=tmp_path, sites=BLOCKS, what=what, schedule="every 10") as w:
        watched = train(model, steps=200, each=lambda step: hooked.append((step, taps.attached())))
    assert watched == bare, "bit for bit, in every step"
    assert [step for step, count in hooked if count] == list(range(0, 200, 10))
    assert sum(count for step, count in hooked if step % 10) == 0
    assert steps_of(w.run, "blocks.2") == steps_of(w.run, "blocks.2:grad_output") == list(range(0, 200, 10))
    assert w.receipt.complete
    assert not w.receipt.silent
    nothing_left(model)


def test_parameters_end_up_bit_identical_with_everything_watched(tmp_path):
    one, other = gpt(), gpt()
    train(one, steps=10)
    roles = ("input", "output", "grad_output", "param", "param_grad", "update", "optimizer")
    with lt.watch(other, path=tmp_path, sites="**", what=roles, keep="tensor", keep_batch=True, ring=3):
        train(other, steps=10)
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_the_line_before_the_loop_is_enough(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(TESTS)!r})
        from loops import gpt, train
        import layertap as lt
        model = gpt()
        lt.watch(model, path={str(tmp_path / "run")!r}, sites="blocks.*")
        train(model, steps=3)
        """)
    )
    subprocess.run([sys.executable, script], check=True)
    run = lt.Run(tmp_path / "run")
    assert not run.partial
    assert steps_of(run, "blocks.3") == [0, 1, 2]


def test_epochs_batches_and_the_phase_are_found_out(tmp_path):
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(batches(count=3), batch_size=4, shuffle=True)
    held_out = DataLoader(batches(seed=9, count=2), batch_size=4)
    with lt.watch(model, path=tmp_path, sites="norm", phases="train,eval") as w:
        for _ in range(2):
            model.train()
            for ids, targets in loader:
                model(ids, targets)[1].backward()
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            for ids, _ in held_out:
                model(ids)
    rows = w.run.table(["site", "step", "epoch", "batch", "phase"]).to_pylist()
    outputs = [row for row in rows if row["site"].startswith("norm") and "grad" not in row["site"]]
    trained = [(r["step"], r["epoch"], r["batch"]) for r in outputs if r["phase"] == "train"]
    assert trained == [(0, 1, 0), (1, 1, 1), (2, 1, 2), (3, 2, 0), (4, 2, 1), (5, 2, 2)]
    seen = [(r["site"], r["epoch"], r["batch"]) for r in outputs if r["phase"] == "eval"]
    assert seen == [("norm", 1, 0), ("norm@1", 1, 1), ("norm", 2, 0), ("norm@1", 2, 1)]
    assert {r["site"] for r in outputs if r["phase"] == "train"} == {"norm"}, "a validation pass numbers no train call"


def test_epochs_and_batches_schedule(tmp_path):
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooked = []
    with lt.watch(model, path=tmp_path, sites="norm", schedule="epochs 2,3 and batches 1") as w:
        for _ in range(3):
            for ids, targets in DataLoader(batches(count=3), batch_size=4):
                hooked.append(taps.attached() > 0)
                model(ids, targets)[1].backward()
                optimizer.step()
    assert steps_of(w.run, "norm") == [4, 7]
    assert [step for step, on in enumerate(hooked) if on] == [4, 7]


def test_a_loader_of_its_own_for_every_epoch_is_a_new_epoch_each_time(tmp_path):
    """The next loader often lies where the last one lay, and has its id."""
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with lt.watch(model, path=tmp_path, sites="norm") as w:
        for _ in range(30):
            for ids, targets in DataLoader(batches(count=1), batch_size=2):
                model(ids, targets)[1].backward()
                optimizer.step()
                seen.append(w.epoch)
    assert seen == [epoch for epoch in range(1, 31) for _ in range(2)]


def test_accumulation_is_one_step_with_several_calls(tmp_path):
    model = gpt()
    with lt.watch(model, path=tmp_path, sites="norm", what=("output", "grad_output", "param_grad")) as w:
        losses = train(model, steps=3, accumulate=2)
    assert steps_of(w.run, "norm") == steps_of(w.run, "norm@1") == [0, 1, 2]
    assert steps_of(w.run, "norm:grad_output@1") == [0, 1, 2]
    assert steps_of(w.run, "norm:param_grad.weight@1") == [0, 1, 2]
    found = [w.run[site].at(step=s).statistics.mean for s in range(3) for site in ("loss", "loss@1")]
    assert found == pytest.approx([loss / 2 for loss in losses])


def test_two_optimizers_of_one_model_make_one_step(tmp_path):
    model = gpt()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    both = torch.optim.AdamW(matrices), torch.optim.SGD(others, lr=0.1)
    data = batches()
    with lt.watch(model, path=tmp_path, sites="norm", what=("output", "update")) as w:
        for step in range(4):
            model(*data[step : step + 2])[1].backward()
            for optimizer in both:
                optimizer.step()
                optimizer.zero_grad()
    assert w.step == 4
    assert steps_of(w.run, "norm") == [0, 1, 2, 3]
    # Who steps together is learnt in the first step; from then on the second optimizer's updates are in their own step.
    assert steps_of(w.run, "norm:param.weight.update")[-3:] == [1, 2, 3]


def test_two_models_each_count_their_own_steps(tmp_path):
    torch.manual_seed(0)
    maker, judge = nn.Sequential(nn.Linear(4, 8)), nn.Sequential(nn.Linear(8, 1))
    of_maker, of_judge = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    with lt.watch(maker, path=tmp_path / "a", sites="0") as a, lt.watch(judge, path=tmp_path / "a", sites="0") as b:
        for _ in range(2):
            for _ in range(3):
                judge(maker(torch.randn(2, 4)).detach()).mean().backward()
                of_judge.step()
            judge(maker(torch.randn(2, 4))).mean().backward()
            of_maker.step()
    assert (a.step, b.step) == (2, 6)
    assert b.path == tmp_path / "a-Sequential"
    assert "is in use by another watch" in b.receipt.notes[0]
    assert steps_of(lt.Run(b.path), "0:grad_output")[:6] == list(range(6))


def test_amp_counts_the_steps_that_the_scaler_skips_and_no_trigger_fires_for_them(tmp_path):
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=2.0**-110)
    data = batches()
    with lt.watch(model, path=tmp_path, sites=BLOCKS, what=("output", "grad_output", "param_grad")) as w:
        for step in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                _, loss = model(*data[step : step + 2])
            scaler.scale(1000 * loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert w.skipped == 1
    assert w.step == 3
    assert any(r["nan"] + r["pos_inf"] + r["neg_inf"] for r in w.run.table(["nan", "pos_inf", "neg_inf"]).to_pylist())
    assert w.reports == ()
    assert any("1 steps were skipped by the AMP scaler" in note for note in w.receipt.notes)
    assert w.run["loss"].at(step=0).statistics.mean < 1e6, "the loss itself, not the scaled one"


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_not_a_second_call(tmp_path, reentrant):
    model = gpt()
    for block in model.blocks:
        forward = block.forward
        block.forward = lambda x, f=forward: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=reentrant)
    with lt.watch(model, path=tmp_path, sites="blocks.*.mlp") as w:
        train(model, steps=2)
    assert not [site for site in w.run.sites if site.call]
    assert steps_of(w.run, "blocks.1.mlp") == steps_of(w.run, "blocks.1.mlp:grad_output") == [0, 1]
    assert sum(site.recomputed for site in w.receipt.sites) > 0


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_a_compiled_model_is_seen_inside_its_one_graph_and_the_receipt_says_what_is_not(tmp_path, late):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = gpt()
    compiled = None if late else torch.compile(model, backend=counter)
    with lt.watch(model, path=tmp_path, sites=["", BLOCKS], what=("output", "param_grad"), schedule=2) as w:
        train(torch.compile(model, backend=counter) if late else compiled, steps=6)
    assert "runs as a torch.compile'd graph" in " ".join(w.receipt.notes)
    assert steps_of(w.run, "blocks.0:param_grad.qkv.weight") == [0, 2, 4]
    assert steps_of(w.run, ":output.0")[-2:] == [2, 4]
    assert steps_of(w.run, "blocks.0")[-2:] == [2, 4]
    assert counter.frame_count <= (1 if not late else 2), "taps that come and go must not compile again and again"
    torch._dynamo.reset()


@pytest.mark.forks
def test_workers_of_a_dataloader_are_not_watched(tmp_path):
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lt.watch(model, path=tmp_path, sites="norm") as w:
        for ids, targets in DataLoader(batches(count=3), batch_size=4, num_workers=2):
            model(ids, targets)[1].backward()
            optimizer.step()
    assert steps_of(w.run, "norm") == [0, 1, 2]
    assert len(w.run.sessions) == 1


def test_update_ratios(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    weight = model[0].weight.detach().clone()
    with lt.watch(model, path=tmp_path, sites="0", what="update") as w:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    (found,) = update_ratios(w.run)
    assert found["site"] == "0:param.weight"
    assert found["ratio"] == pytest.approx((model[0].weight - weight).norm().item() / weight.norm().item())


def test_the_optimizer_s_state_is_recorded_under_its_names(tmp_path):
    model = gpt()
    with lt.watch(model, path=tmp_path, sites="norm", what="optimizer") as w:
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, steps=2, optimizer=optimizer)
    moment = optimizer.state[model.norm.weight]["exp_avg"]
    assert w.run["norm:param.weight.exp_avg"].at(step=1).statistics.l2 == pytest.approx(moment.norm().item())


def test_ranks_that_are_not_asked_for_record_nothing(tmp_path):
    model = gpt()
    with lt.watch(model, path=tmp_path / "run", ranks=[1]) as w:
        train(model, steps=1)
    assert not w.active
    assert not (tmp_path / "run").exists()
    assert "rank 0 records nothing" in w.receipt.notes[0]


def test_a_loop_without_an_optimizer_says_its_steps_itself(tmp_path):
    model = gpt()
    with lt.watch(model, path=tmp_path, sites="norm") as w:
        for step in range(3):
            w.epoch = 7
            model(*batches()[step : step + 2])[1].backward()
            w.advance()
    assert steps_of(w.run, "norm") == [0, 1, 2]
    assert w.run["norm"].at(step=1).record.epoch == 7


def test_options_are_checked_before_the_loop(tmp_path):
    model = gpt()
    with pytest.raises(BadArgument, match="no option 'shedule'; nearest: schedule"):
        lt.watch(model, path=tmp_path, shedule=3)
    with pytest.raises(BadArgument, match=r"what=.*choose from"):
        lt.watch(model, path=tmp_path, what="gradients")
    with pytest.raises(NoMatch, match="blocks"):
        lt.watch(model, path=tmp_path, sites="blcks.*")
    nothing_left(model)


def test_a_config_file_and_its_printed_plan(tmp_path):
    file = tmp_path / "monitor.toml"
    file.write_text(
        '[watch]\nsites = "blocks.*"\nschedule = "first 2 or every 100"\nring = 5\ntriggers = {loss_spike = 8}\n'
    )
    with lt.watch(gpt(), file, path=tmp_path / "run") as w:
        train(w.model, steps=3)
    plan = str(w.config)
    assert "the first 2 steps or every 100th step: 0, 1, 100, 200" in plan
    assert "the last 5 steps" in plan
    assert "loss above its median by 8 × its spread" in plan
    assert steps_of(w.run, "blocks.0") == [0, 1]
