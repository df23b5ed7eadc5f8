import pytest

import layertap as lt
from sweeping.nets import write


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    """The definition, and what a sweep through all of its modes gave."""
    folder = tmp_path_factory.mktemp("sweep")
    path = write(folder)
    return path, lt.sweep(path, folder / "runs")
