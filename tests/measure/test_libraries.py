"""A library that was compiled from an older source gives older numbers; nothing else would show it."""

import sys
from pathlib import Path

import pytest

from layertap import measure

SOURCES = sorted(Path(measure.__file__).parents[1].glob("*/*.c"))
SHARED = "onepass.c"
"""The others of its folder include it."""


def library_of(source):
    if source.stem == "tap":  # an extension module
        return source.with_name("_tap.abi3.so")
    return source.with_name(f"_{source.stem}{'.dylib' if sys.platform == 'darwin' else '.so'}")


def older(library, source):
    read = [source, *source.parent.glob(SHARED), *source.parent.glob(f"{source.stem}_*.h")]
    return [one.name for one in read if one.stat().st_mtime > library.stat().st_mtime]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_library_is_older_than_its_source(source):
    library = library_of(source)
    if not library.exists():
        pytest.skip("not compiled: no compiler when layertap was installed")
    assert not older(library, source), f"{library} is older than its source: pip install -e ."
