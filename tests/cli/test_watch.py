"""`layertap watch -- command`: scripts that know nothing of it, in processes of their own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import layertap as lt
from layertap.errors import BadArgument, RunError
from layertap.watching import read_reports
from scripts import script, watch

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_style" / "train_chars.py"


def test_a_script_in_plain_style_is_watched_and_does_not_notice(tmp_path, capfd):
    assert "layertap" not in EXAMPLE.read_text()
    command = [sys.executable, str(EXAMPLE), "--epochs", "2", "--workers", "1"]
    bare = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    told = watch("-o", tmp_path / "run", "--sites", "layers.*", "--schedule", "every 5", "--", *command)
    assert capfd.readouterr().out == bare, "the same losses, to the last printed digit"
    assert "CharTransformer → " in told
    run = lt.Run(tmp_path / "run")
    assert not run.partial
    assert list(run["layers.1:grad_output"].steps) == list(range(0, 40, 5))
    record = run["layers.1"].at(step=25).record
    assert (record.epoch, record.batch, record.phase) == (2, 5, "train")


def test_a_module_with_arguments_and_an_exit_code(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack").mkdir()
    script(tmp_path / "pack", "fit(net(), 2)\nprint(sys.argv[1:])\nsys.exit(7)\n", "__main__.py")
    watch("-o", "run", "--", sys.executable, "-m", "pack", "--lr", "3", "--", "x", code=7)
    assert "['--lr', '3', '--', 'x']" in capfd.readouterr().out
    assert list(lt.Run("run")["0"].steps) == [0, 1]


def test_a_crash_brings_the_ring_to_disk_and_the_traceback_is_the_script_s(tmp_path, capfd):
    path = script(tmp_path, "fit(net(), 9, lambda step: 1 / (step - 6))")
    told = watch("-o", tmp_path / "run", "--ring", 3, "--", sys.executable, path, code=1)
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert "crash at step 6: ZeroDivisionError: division by zero" in told
    (report,) = read_reports(tmp_path / "run")
    assert report.steps == (3, 4, 5)
    assert list(lt.Run(tmp_path / "run")["2"].steps) == [3, 4, 5]


def interrupted(step):
    return f"""
        def stop(step):
            if step == {step}:
                raise KeyboardInterrupt

        fit(net(), 9, stop)
    """


def test_ctrl_c_is_no_crash(tmp_path):
    path = script(tmp_path, interrupted(3))
    told = watch("-o", tmp_path / "run", "--ring", 3, "--", sys.executable, path, code=130)
    assert "crash at step 3: KeyboardInterrupt\n" in told


@pytest.mark.parametrize("line", ["lt.watch(model, path='run')", "lt.record(model, 'run').start()"])
def test_ctrl_c_is_no_crash_where_the_script_asks_for_layertap_itself(tmp_path, line):
    text = textwrap.dedent(interrupted(3)).replace(
        "fit(net()", f"import layertap as lt; model = net(); {line}; fit(model"
    )
    path = script(tmp_path, text)
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == -2, done.stderr
    assert not lt.Run(tmp_path / "run").partial


def test_the_model_by_class_and_by_name_and_two_models(tmp_path):
    path = script(
        tmp_path,
        """
        class Wrapper(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.extra = net(), nn.Linear(8, 8)

            def forward(self, x):
                return self.extra(self.inner(x))

        wrapped = Wrapper()
        fit(wrapped, 2)
        critic = net()
        fit(critic, 3)
        """,
    )
    told = watch("-o", tmp_path / "all", "--sites", "**", "--", sys.executable, path)
    assert "Wrapper → " in told
    assert list(lt.Run(tmp_path / "all")["inner.1"].steps) == [0, 1]
    assert list(lt.Run(tmp_path / "all-Net")["1"].steps) == [0, 1, 2]
    watch("-o", tmp_path / "named", "--sites", "*", "--model", "critic", "--", sys.executable, path)
    assert list(lt.Run(tmp_path / "named")["1"].steps) == [0, 1, 2]
    assert not (tmp_path / "named-Net").exists()


def test_nothing_to_watch_is_said(tmp_path, capfd):
    code = "import sys, torch; print('loaded:', 'layertap' in sys.modules, 'layertap' in sys.path[0])"
    told = watch("-o", tmp_path / "run", "--", sys.executable, "-c", code)
    assert "loaded: False False" in capfd.readouterr().out, "a process that trains nothing pays nothing"
    assert "nothing was captured" in told
    assert "no Python process in it created a torch optimizer" in told
    path = script(tmp_path, "fit(net(), 1)")
    told = watch("-o", tmp_path / "run", "--sites", "layrs.*", "--", sys.executable, path)
    assert "Net cannot be recorded:" in told
    assert "nothing was captured" in told
    watch("-o", tmp_path / "run", "--sites", "layrs.*", "--strict", "--", sys.executable, path, code=1)


def test_kill_9_in_the_middle_then_resume_then_read_all(tmp_path):
    path = script(
        tmp_path,
        """
        import signal, time
        checkpoint, model = "state.pt", net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        first = 0
        if os.path.exists(checkpoint):
            state = torch.load(checkpoint)
            model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])
            first = state["step"]

        def each(number):
            step = first + number
            torch.manual_seed(step)
            if step == 20 and not first:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, checkpoint)
                time.sleep(3)     # long enough for an idle writer to commit
            if step == 25 and not first:
                time.sleep(3)
            if step == 30 and not first:
                os.kill(os.getpid(), signal.SIGKILL)

        fit(model, 40 - first, each, optimizer)
        """,
    )
    environment = {**os.environ}
    command = ["-o", tmp_path / "run", "--sites", "*", "--", sys.executable, path]
    old = os.getcwd()
    os.chdir(tmp_path)
    try:
        told = watch(*command, code=128 + 9)
        assert "its process ended without a message;" in told
        killed = lt.Run(tmp_path / "run")
        assert killed.partial
        assert list(killed["2"].steps) == list(range(25)), "all that was committed; the last seconds are lost"
        told = watch(*command)
    finally:
        os.chdir(old)
    assert environment == dict(os.environ)
    run = lt.Run(tmp_path / "run")
    assert list(run["2:grad_output"].steps) == list(range(40)), "nothing is missing"
    assert len(run["2"]) == 25 + 20, "steps 20 to 24 were recorded twice, before the crash and after it"
    assert len(run.sessions) == 2
    assert [session["status"] for session in run.sessions] == ["recording", "complete"]
    # The steps that were made twice, from the same checkpoint and seed, are the same to the bit.
    twice = {step: {r.fingerprint for r in run["2"].at(step=step)} for step in range(20, 25)}
    assert all(len(marks) == 1 for marks in twice.values())


def test_check_determinism_names_the_first_step_and_site(tmp_path):
    path = script(
        tmp_path,
        """
        model = net()
        noise = float.fromhex("0x1p-3") * int.from_bytes(os.urandom(2), "little")
        def each(step):
            if step == 4:
                model[1].register_forward_hook(lambda module, args, output: output + noise)
        fit(model, 6, each)
        """,
    )
    out = tmp_path / "check"
    told = watch("--check-determinism", "-o", out, "--sites", "*", "--", sys.executable, path, code=1)
    assert "they differ from step 4 on, by more than rounding explains" in told
    assert "first bit that differs: step 4, 1 (Sequential)" in told


def test_check_determinism_does_not_call_two_of_four_steps_identical(tmp_path):
    path = script(
        tmp_path,
        """
        here = os.path.exists("once")
        open("once", "w").close()
        fit(net(), 2 if here else 4)
        """,
    )
    old = os.getcwd()
    os.chdir(tmp_path)
    try:
        told = watch("--check-determinism", "-o", "check", "--sites", "*", "--", sys.executable, path, code=3)
    finally:
        os.chdir(old)
    assert "the 2 steps that both have are bit-identical, but 2 steps are on one side only" in told


def test_a_folder_that_cannot_be_written_is_told_before_the_command_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="no run can be written here"):
        watch("-o", tmp_path / "file" / "run", "--", sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert not (tmp_path / "ran").exists()


def test_the_plan_is_printed_and_bad_usage_is_told(tmp_path):
    told = watch("--plan", "--schedule", "first 3", "--ring", 5)
    assert "the first 3 steps: 0, 1, 2; 3 of the first 1000 steps" in told
    with pytest.raises(BadArgument, match="give it after --"):
        watch("-o", tmp_path / "run")
    with pytest.raises(BadArgument, match="no-such-program: cannot be run"):
        watch("-o", tmp_path / "run", "--", "no-such-program")


@pytest.mark.slow
def test_torchrun_with_two_ranks_writes_one_run(tmp_path):
    path = script(
        tmp_path,
        """
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = DDP(net())
        torch.manual_seed(dist.get_rank())
        fit(model, 3)
        dist.destroy_process_group()
        """,
    )
    run_it = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    told = watch("-o", tmp_path / "run", "--sites", "*", "--what", "output,grad_output,param_grad", "--", *run_it)
    assert "Net (rank 1) → " in told
    run = lt.Run(tmp_path / "run")
    assert not run.partial, run.problems
    for rank in (0, 1):
        assert list(run["1"].at(rank=rank).steps) == [0, 1, 2]
    marks = {run["1"].at(rank=rank, step=0).record.fingerprint for rank in (0, 1)}
    assert len(marks) == 2, "each rank saw its own batch"
