"""Work done by Ray core tasks: the only file that knows Ray.

    with RayEngine(workers=2) as engine:
        lt.diff("runs/a", "runs/b", engine=engine)
        lt.audit("a.safetensors", "b.safetensors", engine=engine)

Ray is started unless it runs already, and what was started here is stopped at the end: no dashboard, no usage
statistics, a small object store, and only this machine's loopback. Tasks are submitted as earlier ones are taken, so
what waits stays bounded. A task whose worker dies is run again by Ray.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from layertap.engine.engine import Engine, Recipe
from layertap.errors import BadArgument, EngineError, LayertapError, MissingExtra
from layertap.messages import language, tr

Item = TypeVar("Item")
Found = TypeVar("Found")

RETRIES = 3
"""How often a task is run again whose worker died."""
AHEAD = 2
"""Tasks for each worker that are submitted and not taken yet."""
STORE = 128 << 20
"""Bytes of the object store: only recipes and numbers go through it."""
REACHED_IN = 5.0
"""Seconds for a connection to a cluster; Ray itself would try for minutes, and then end the process."""
_TOKEN = secrets.token_hex(32)
_imported_here = False
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # By its name for other systems; on Linux too it makes Ray listen on the loopback alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Otherwise Ray would write one into the home folder. One for the process, since Ray reads it only once.
    "RAY_AUTH_TOKEN": _TOKEN,
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class RayEngine(Engine):
    """Ray workers: of the cluster at an address, of the Ray that this program has started, or of a Ray of their own."""

    remote = True

    def __init__(self, address: str | None = None, *, workers: int | None = None, retries: int = RETRIES) -> None:
        """`workers` is how many are at work at a time, by default one for each processor."""
        if workers is not None and workers < 1:
            raise BadArgument(tr("engine.workers", workers=workers))
        self.address, self.workers, self.retries = address, workers, retries
        self._ours = False
        self._before: dict[str, str | None] = {}
        self._ray: Any = None

    def __enter__(self) -> RayEngine:
        global _imported_here
        # Ray reads these when it is imported: who imported it before us has chosen.
        _imported_here = _imported_here or "ray" not in sys.modules
        if self.address is None:
            self._set_environment(_ENVIRONMENT if _imported_here and "RAY_AUTH_MODE" not in os.environ else {})
        try:
            self._ray = _ray()
            if not self._ray.is_initialized():
                self._start()
            elif self.address is not None:
                raise BadArgument(tr("engine.already", address=self.address))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            self._ours = False
            self._ray.shutdown()
            _print_reports(True)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}

    def map(
        self,
        work: Callable[[Any, Item], Found],
        items: Iterable[Item],
        *,
        here: Any,
        there: Callable[[], Recipe],
        called: Callable[[Item], str],
        processors: int = 1,
        at_once: int | None = None,
    ) -> Iterator[Found]:
        ray, waiting = self._ray, deque[tuple[str, Any]]()
        if ray is None:
            raise BadArgument(tr("engine.closed"))
        # Under a reference within a list, which Ray does not resolve: a worker fetches it once, not for each task.
        given = [ray.put(_pickled(there(), tr("engine.the_sources")))]
        job = _MapJob(secrets.token_hex(8), _version(), language(), os.getcwd())
        processors = max(1, min(processors, int(max(node["Resources"].get("CPU", 1) for node in ray.nodes()))))
        task = ray.remote(num_cpus=processors, max_retries=self.retries)(_do)
        most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)) // processors)
        if self.workers is not None and (self.address is not None or not self._ours):
            most = self.workers  # of a Ray that others have started, no more than these are asked for
        most = min(most, at_once or most)
        try:
            for item in items:
                name = called(item)
                waiting.append((name, task.remote(job, given, work, _pickled(item, name))))
                if len(waiting) >= most:
                    yield self._result(*waiting.popleft())
            while waiting:
                yield self._result(*waiting.popleft())
        finally:
            for _, left in waiting:
                if ray.is_initialized():  # else there is nothing to cancel, and Ray would start itself to do it
                    ray.cancel(left)

    def _result(self, name: str, reference: Any) -> Any:
        try:
            found = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()
            last = why[-1].strip() if why else ""
            if isinstance(error, self._ray.exceptions.RayTaskError):
                raise EngineError(tr("engine.cannot_run", name=name, why=last)) from error
            values = {"name": name, "retries": self.retries, "kind": type(error).__name__}
            raise EngineError(tr("engine.lost", **values, why=last)) from error
        if isinstance(found, _TaskFailure):
            found.raise_for(name)
        return found

    def _start(self) -> None:
        """Starts Ray, or connects to the cluster."""
        quiet = logging.getLogger("ray")
        level, handler = quiet.level, signal.getsignal(signal.SIGTERM)
        quiet.setLevel(logging.ERROR)
        settings: dict[str, Any] = {"configure_logging": False, "log_to_driver": False}
        if self.address is None:
            settings |= {"include_dashboard": False, "object_store_memory": STORE, "num_cpus": self.workers}
            settings["address"] = "local"
        else:
            _reach(self.address)
            settings["address"] = self.address
        try:
            self._ours = True
            _print_reports(False)
            self._ray.init(**settings)
        except (LayertapError, KeyboardInterrupt):
            raise
        except (Exception, SystemExit) as error:
            where = self.address or tr("engine.this_machine")
            raise EngineError(tr("engine.not_started", address=where, why=_first_line(error))) from error
        finally:
            quiet.setLevel(level)
            if threading.current_thread() is threading.main_thread() and handler is not None:
                signal.signal(signal.SIGTERM, handler)  # Ray sets one and leaves it

    def _set_environment(self, wanted: Mapping[str, str]) -> None:
        for name, value in wanted.items():
            if name not in os.environ:
                self._before[name] = None
                os.environ[name] = value
        # The workers find what this process finds, in the same order.
        self._before["PYTHONPATH"] = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        self._before["RAY_AUTH_MODE"] = os.environ.get("RAY_AUTH_MODE")  # which Ray sets when it starts


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(tr("engine.needs_ray")) from error
    return ray


def _print_reports(shown: bool) -> None:
    """Whether Ray prints what its node reports (a worker that died). It does so on standard output, and spoils JSON."""
    from ray._private import worker

    if hasattr(worker, "_worker_logs_enabled"):  # of its own progress bars; there is no public switch
        worker._worker_logs_enabled = shown


def _reach(address: str) -> None:
    """An EngineError unless somebody listens at an address of the form HOST:PORT."""
    if address == "auto":
        return
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        raise BadArgument(tr("engine.bad_address", address=address))
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED_IN).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise EngineError(tr("engine.unreachable", address=address, why=why)) from error


def _pickled(value: Any, name: str) -> bytes:
    from ray import cloudpickle

    try:
        found: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise BadArgument(tr("engine.not_sent", name=name, why=_first_line(error))) from error
    return found


def _version() -> str:
    """Of layertap; its index card is not imported by those whom it imports."""
    return str(sys.modules["layertap"].__dict__["__version__"])


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


# What follows runs in a worker.


class _MapJob(NamedTuple):
    """What all tasks of one `map` have in common."""

    token: str
    version: str
    language: str
    folder: str


class _TaskFailure(NamedTuple):
    """What a task raised."""

    error: bytes
    """Pickled; empty where it cannot be."""
    text: str
    trace: str

    def raise_for(self, name: str) -> None:
        """Raises it again, with the item's name where its text does not have it."""
        error: BaseException = EngineError(tr("engine.failed", name=name, why=self.text))
        if self.error:
            with suppress(Exception):  # a class that does not come back from a pickle: its text remains
                error = pickle.loads(self.error)
        if name not in str(error) and len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (f"{name}: {error.args[0]}",)
        raise error from EngineError(tr("engine.in_worker", name=name, trace=self.trace))


_state: dict[str, Any] = {}
"""What this worker prepared for the map that it works for."""


def _do(job: _MapJob, given: list[Any], work: Callable[[Any, Any], Any], item: bytes) -> Any:
    try:
        if job.token not in _state:
            _state.clear()
            _state[job.token] = _prepared(job, given)
        return work(_state[job.token], pickle.loads(item))
    except Exception as error:  # noqa: BLE001  it is raised again where the work was asked for
        try:
            pickled = pickle.dumps(error)
        except Exception:  # noqa: BLE001  whatever it holds, its text can be sent
            pickled = b""
        return _TaskFailure(pickled, _first_line(error), traceback.format_exc())


def _prepared(job: _MapJob, given: list[Any]) -> Any:
    if job.version != _version():
        raise EngineError(tr("engine.versions", here=job.version, there=_version()))
    import ray

    os.environ["LAYERTAP_LANG"] = job.language  # texts of results are made here too
    if os.path.isdir(job.folder):
        os.chdir(job.folder)  # so that a relative path means the same
    recipe: Recipe = pickle.loads(ray.get(given[0]))
    return recipe.prepare(recipe.given)
