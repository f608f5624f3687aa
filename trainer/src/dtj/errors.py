"""What can go wrong, as a small tree; every message says what, which value, and how to mend it.

DtjError                    exit 1
├── RecipeError             exit 78: bad recipe, arguments or environment; a retry cannot help
└── CheckpointError         exit 1: the disk, not the recipe, is at fault
Stopped(SystemExit)         not an error: the agreed stop after SIGTERM, exit 75 with a committed checkpoint
"""

from dtj.contract import EXIT_BAD_RECIPE


class DtjError(Exception):
    """An error whose message is meant for a person: printed as two lines, without a traceback."""

    exit_code = 1

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}\n  fix: {self.fix}" if self.fix else self.what


class RecipeError(DtjError):
    """The recipe, its arguments or the environment cannot work as given."""

    exit_code = EXIT_BAD_RECIPE


class CheckpointError(DtjError):
    """A checkpoint could not be written or read."""


class Stopped(SystemExit):
    """Raised out of `run.steps` on every rank at the same step, once a stop was asked for."""
