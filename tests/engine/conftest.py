"""One Ray for all of these tests, with two workers; it takes seconds to start."""

from importlib.util import find_spec

import pytest

from layertap.engine.over_ray import RayEngine

if find_spec("ray") is None:  # not imported: how Ray listens is decided when it is
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def workers():
    with RayEngine(workers=2) as engine:
        yield engine
