"""Compiles the C files when the package is built or installed editable.

Without a compiler the build goes on and says so: plain.py then does the same work with torch's operations,
pair/plain.py with numpy's, tensors are read in place of mapped, and every record goes the long way. The libraries use
no Python headers, and the one extension module Python's limited API: one wheel serves every Python from 3.10 on.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = ["measure/onepass", "measure/pair", "measure/parts", "measure/signs", "store/mapped"]
# Not -march=native: they look at the processor when they run. Not -ffast-math: they look for NaN and Inf. And
# no contraction: a fused multiply-add is written where it is wanted.
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-shared", "-fPIC"]
EXTENSION = "capture/tap"
"""The one source that is an extension module of Python."""


class BuildHook(BuildHookInterface[Any]):
    """hatchling finds it by its base class."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":  # an sdist carries the source
            return
        python = "py3-none"
        for name in (*SOURCES, EXTENSION):
            source = Path(self.root, "src", "layertap", f"{name}.c")
            extension = name == EXTENSION
            ending = ".abi3.so" if extension else ".dylib" if sys.platform == "darwin" else ".so"
            library = source.with_name(f"_{source.stem}{ending}")
            flags = FLAGS
            if extension:
                flags = [*FLAGS, f"-I{sysconfig.get_paths()['include']}"]
                flags += ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
            if not self.compile(source, library, flags):
                library.unlink(missing_ok=True)  # one from an earlier build may not fit this source
                continue
            python = "cp310-abi3" if extension else python
            build_data["artifacts"].append(f"/{library.relative_to(self.root).as_posix()}")
            build_data["pure_python"] = False
            build_data["tag"] = f"{python}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def compile(self, source: Path, library: Path, flags: list[str]) -> bool:
        """Writes to a temporary name first, so that a process which has the old library open keeps it."""
        compiler = shlex.split(os.environ.get("CC", "cc"))
        if shutil.which(compiler[0]) is None:
            self.app.display_warning(f"layertap: no C compiler ({compiler[0]}); the work is done by Python and torch")
            return False
        temporary = library.with_name(f"{library.name}.{os.getpid()}")
        command = [*compiler, *flags, "-o", str(temporary), str(source), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.app.display_warning(f"layertap: {shlex.join(command)} failed; the work is done by Python and torch")
            self.app.display_warning(done.stderr)
            return False
        temporary.replace(library)
        return True
