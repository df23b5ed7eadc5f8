"""A model in a test suite: record it, and hold it against a golden baseline that is in git.

    assert_matches   a run against its golden; fails with the printed report
    save_golden      a run -> one small file of text
    load_golden      the way back, as a run in memory

    golden      the file: what is in it, read with suspicion         <- read first
    matching    assert_matches
    plugin      for pytest: the fixture `layertap_golden`, the option `--layertap-update`
    session     what one pytest session has written

Importing this imports neither torch nor pyarrow: pytest does it at every start, also of suites that have no model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from layertap.messages import tr

if TYPE_CHECKING:
    from layertap.testing.golden import load_golden, save_golden
    from layertap.testing.matching import assert_matches

__all__ = ["assert_matches", "load_golden", "save_golden"]

_FILES = {"assert_matches": "matching", "load_golden": "golden", "save_golden": "golden"}


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(tr("testing.no_such", name=name, all=", ".join(__all__)))
    return getattr(import_module(f"layertap.testing.{_FILES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
