"""A watched script may end in any way: what was recorded is kept, and it ends by the same code or signal."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

import layertap as lt
from layertap.watching import read_reports
from scripts import script, watch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

TWICE = """
    def stop(step):
        if step == 5:
            {end}

    fit(net(), 9, stop)
"""


def ended_by(tmp_path, end, code, *options):
    path = script(tmp_path, textwrap.dedent(TWICE).format(end=end))
    return watch("-o", tmp_path / "run", *options, "--", sys.executable, path, code=code)


@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        ("os._exit(3)", 3, "os._exit(3)"),
        ("import signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", 128 + 15, "SIGTERM"),
        (
            "import signal, ctypes; os.kill(os.getpid(), signal.SIGUSR1); ctypes.CDLL(None).sleep(60)",
            128 + 10,
            "SIGUSR1",
        ),
        pytest.param("os.abort()", 128 + 6, "os.abort()", marks=pytest.mark.slow),
        pytest.param(
            "os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(4)'])",
            4,
            "os.execv()",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_records_and_the_ring_are_kept_and_the_end_is_its_own(tmp_path, end, code, told):
    output = ended_by(tmp_path, end, code, "--ring", 3)
    assert "ended without a message;" not in output
    run = lt.Run(tmp_path / "run")
    assert not run.partial, run.problems
    assert list(run["2"].steps) == [2, 3, 4]
    (report,) = read_reports(tmp_path / "run")
    assert report.reason == told


@pytest.mark.slow
def test_a_handler_of_the_script_s_own_is_the_one_that_counts(tmp_path, capfd):
    end = "signal.signal(signal.SIGTERM, lambda *_: print('mine', flush=True)); os.kill(os.getpid(), signal.SIGTERM)"
    ended_by(tmp_path, f"import signal; {end}", 0)
    assert "mine" in capfd.readouterr().out
    assert list(lt.Run(tmp_path / "run")["2"].steps) == list(range(9))


@pytest.mark.slow
def test_frameworks_find_no_handler_that_is_not_theirs(tmp_path, capfd):
    ended_by(
        tmp_path,
        "import signal; print(repr(signal.getsignal(signal.SIGTERM)), repr(signal.getsignal(signal.SIGUSR1)))",
        0,
    )
    assert capfd.readouterr().out.count("SIG_DFL") == 2


def test_a_faulthandler_of_the_script_s_own_stays(tmp_path, capfd):
    path = script(
        tmp_path,
        """
        import faulthandler, signal
        faulthandler.register(signal.SIGUSR1)
        fit(net(), 3, lambda step: os.kill(os.getpid(), signal.SIGUSR1))
        """,
    )
    watch("-o", tmp_path / "run", "--", sys.executable, path)
    assert "most recent call first" in capfd.readouterr().err, "its own dump of the stack"
    assert list(lt.Run(tmp_path / "run")["2"].steps) == [0, 1, 2]


@pytest.mark.forks
@pytest.mark.parametrize("before", [False, True])
def test_a_training_in_a_forked_process_is_kept(tmp_path, before):
    path = script(
        tmp_path,
        f"""
        import multiprocessing
        def work(model, optimizer):
            fit(model, 4, optimizer=optimizer)

        model = net()
        optimizer = torch.optim.AdamW(model.parameters()) if {before} else None
        child = multiprocessing.get_context("fork").Process(target=work, args=(model, optimizer))
        child.start()
        child.join()
        assert child.exitcode == 0
        """,
    )
    told = watch("-o", tmp_path / "run", "--what", "output,param_grad", "--", sys.executable, path)
    (folder,) = [found for found in tmp_path.glob("run*") if (found / "run.json").exists() and lt.Run(found).count]
    run = lt.Run(folder)
    assert not run.partial, run.problems
    assert list(run["loss"].steps)[-3:] == [1, 2, 3]
    assert f"{folder.name}" in told


@pytest.mark.forks
def test_workers_that_are_ended_by_a_signal_end_by_it_and_do_not_end_the_training(tmp_path):
    path = script(
        tmp_path,
        """
        import multiprocessing, signal, time
        def idle():
            time.sleep(60)

        def each(step):
            child = multiprocessing.get_context("fork").Process(target=idle)
            child.start()
            time.sleep(0.2)
            child.terminate()
            child.join(20)
            assert child.exitcode == -signal.SIGTERM, child.exitcode

        fit(net(), 3, each)
        """,
    )
    watch("-o", tmp_path / "run", "--", sys.executable, path)
    assert list(lt.Run(tmp_path / "run")["2"].steps) == [0, 1, 2]


def usual_signals():
    """The tests may run under nohup or in the background, where these are ignored, and so by who is started there."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started(tmp_path, text, *options):
    """`layertap watch` as a process of its own; returns when the script says that it is ready."""
    path = script(tmp_path, text)
    command = [sys.executable, "-m", "layertap", "watch", "-o", str(tmp_path / "run"), *options, "--"]
    process = subprocess.Popen(
        [*command, sys.executable, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=usual_signals,  # noqa: PLW1509 - no other thread runs here
    )
    assert process.stdout is not None
    assert "ready" in process.stdout.readline()
    return process


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGUSR1,
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR2, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_signals_to_the_command_reach_the_script(tmp_path, number):
    process = started(
        tmp_path,
        f"""
        import signal, time
        seen = []
        signal.signal({int(number)}, lambda number, frame: seen.append(number))
        def each(step):
            if step == 1:
                print("ready", flush=True)
                for _ in range(600):
                    time.sleep(0.1)
                    if seen:
                        sys.exit(7)

        fit(net(), 3, each)
        """,
    )
    with process:
        process.send_signal(number)
        assert process.wait(60) == 7, "the script's own exit code"
    assert not lt.Run(tmp_path / "run").partial


def test_a_signal_that_nobody_handles_ends_both_and_nothing_is_lost(tmp_path):
    process = started(
        tmp_path,
        """
        import time
        def each(step):
            if step == 3:
                print("ready", flush=True)
                time.sleep(60)

        fit(net(), 5, each)
        """,
        "--ring",
        "2",
    )
    with process:
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 128 + signal.SIGHUP
    run = lt.Run(tmp_path / "run")
    assert not run.partial
    assert list(run["2"].steps) == [1, 2]


@pytest.mark.slow
def test_what_is_ignored_stays_ignored_as_under_nohup(tmp_path, capfd):
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ended_by(tmp_path, "import signal; os.kill(os.getpid(), signal.SIGHUP)", 0)
    finally:
        signal.signal(signal.SIGHUP, old)
    assert list(lt.Run(tmp_path / "run")["2"].steps) == list(range(9))


@pytest.mark.slow
def test_kill_of_the_script_is_told_and_the_code_is_the_shell_s(tmp_path):
    told = ended_by(tmp_path, "import signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + 9)
    assert "its process ended without a message;" in told


def test_it_is_all_taken_back(tmp_path):
    from layertap.watching import exit_signal

    before = {name: getattr(os, name) for name in ("_exit", "abort", "execv", "execve")}
    saved = []
    exit_signal.before_sudden_end(saved.append)
    assert os._exit is not before["_exit"]
    exit_signal.no_longer(saved.append)
    assert {name: getattr(os, name) for name in before} == before
    assert exit_signal._handler(signal.SIGTERM) == 0
