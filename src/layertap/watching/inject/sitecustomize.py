"""Runs at the start of every Python that `layertap watch -- …` starts, because its folder is first on PYTHONPATH.

It does as little as it can: it leaves sys.path as it found it, hands on to the sitecustomize that it hides, and waits
for torch, and then for the first optimizer: a process that makes none (a DataLoader's worker, a launcher) loads nothing
of layertap. Nothing here may raise: it is not our process.
"""

import functools
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


def _wait_for_an_optimizer(torch: Any) -> None:
    """torch is there: the first optimizer that is made is where watching begins."""
    kind = torch.optim.Optimizer
    build = kind.__init__

    @functools.wraps(build)
    def build_and_watch(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__ = build
        build(optimizer, *args, **kwargs)
        _begin_watching(optimizer)

    kind.__init__ = build_and_watch


def _begin_watching(optimizer: Any) -> None:
    if importlib.util.find_spec("layertap") is None:
        sys.path.append(_PACKAGES)  # another environment's Python; last, so that it hides nothing
    try:
        from layertap.watching.script import install

        install(optimizer)
    except Exception as error:
        if '"strict": true' in os.environ.get("LAYERTAP_WATCH", ""):
            raise
        print(f"layertap: this Python cannot be watched ({type(error).__name__}: {error})", file=sys.stderr)


class _WaitForTorch:
    """A finder that finds nothing: it sees `import torch`, and has the real loader followed by our line."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(_WaitForTorch)
        spec = importlib.util.find_spec("torch")
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            load = loader.exec_module

            def load_and_watch(module: ModuleType) -> None:
                load(module)
                _wait_for_an_optimizer(module)

            loader.exec_module = load_and_watch
        return spec


def _hand_on() -> None:
    """Runs the sitecustomize that would have been found without us."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None and spec.origin != __file__:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    if os.environ.get("LAYERTAP_WATCH"):
        sys.meta_path.insert(0, _WaitForTorch)
    _hand_on()
