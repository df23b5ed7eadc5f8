"""Every error layertap raises on purpose.

LayertapError
├── NoMatch            a pattern selected nothing; the nearest names are in the text
├── NothingCaptured    recording ended and no requested site had fired
├── BadArgument        an argument that cannot mean anything (also a ValueError)
├── MissingExtra       an optional dependency is absent; the pip line is in the text
├── TargetError        a model or a compiled file could not be opened or run
├── RankFailed         another rank of the job raised an error; it is named with the rank
├── WeightsWrong       weights were loaded, and a checkpoint and the model do not agree
├── EngineError        the workers that an analysis was given to cannot be reached, or were lost
└── RunError           something about a run on disk
    ├── RunExists      the folder already holds a run
    ├── NotARun        the folder contains no run
    ├── CorruptRun     a file of the run is damaged; the file is named
    ├── NewerFormat    the run was written by a newer layertap
    ├── SiteNotFound   the run contains no such site (also a KeyError)
    └── NoTensor       the site was recorded, its tensor was not kept
"""

from layertap.messages import printable


class LayertapError(Exception):
    """The base of all errors that layertap raises on purpose. Its text contains nothing that a terminal would obey."""

    def __str__(self) -> str:
        # Not `super().__str__()`: KeyError shows the repr of its argument, quotes and escaped newlines included.
        return printable(str(self.args[0]) if len(self.args) == 1 else ", ".join(map(str, self.args)))


class NoMatch(LayertapError, LookupError):
    """A pattern selected nothing."""


class NothingCaptured(LayertapError):
    """Recording ended and no requested site had fired."""


class BadArgument(LayertapError, ValueError):
    """An argument that cannot mean anything."""


class MissingExtra(LayertapError, ImportError):
    """An optional dependency is absent."""


class TargetError(LayertapError):
    """A model could not be opened or run."""


class RankFailed(LayertapError):
    """Another rank of the job raised an error."""


class WeightsWrong(LayertapError):
    """Weights were loaded, and a checkpoint and the model do not agree."""


class EngineError(LayertapError):
    """Workers cannot be reached, or were lost."""


class RunError(LayertapError):
    """Something about a run on disk."""


class RunExists(RunError, FileExistsError):
    """The folder already holds a run."""


class NotARun(RunError, FileNotFoundError):
    """The folder contains no run."""


class CorruptRun(RunError):
    """A file of the run is damaged."""


class NewerFormat(RunError):
    """The run was written by a newer layertap."""


class SiteNotFound(RunError, KeyError):
    """The run contains no such site."""


class NoTensor(RunError):
    """The site was recorded, its tensor was not kept."""
