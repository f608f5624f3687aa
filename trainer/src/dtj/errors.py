"""The tree of errors. Every message says what happened, which value, and how to fix it.

DtjError                    exit 1
├── RecipeError             exit 78: invalid recipe, arguments or environment; a retry will not help
├── CheckpointError         exit 1: a checkpoint could not be written or read; the recipe is not the cause
├── SupersededError         exit 76: a process that started later writes to the run's folder; never restarted
└── MachineError            exit 76: no process or port available; a retry or another node may help
Stopped(SystemExit)         not an error: the agreed stop after SIGTERM, exit 75 with a committed checkpoint
"""

import re

from dtj.contract import EXIT_BAD_RECIPE, EXIT_PEER_LOST

# Error messages of gloo, NCCL and the store when a peer is gone.
_PEER_LOST = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|remote process exited|socket timeout"
    r"|timed out waiting|failed to recv|could not connect|wait timeout|ncclRemoteError|recvValue failed"
    r"|sendBytes failed|heartbeat",
    re.IGNORECASE,
)
_NETWORK = re.compile(r"gloo|nccl|tcpstore|socket|store|rendezvous", re.IGNORECASE)


class DtjError(Exception):
    """An error that is printed as two lines (what, fix), without a traceback."""

    exit_code = 1
    reason = "Exception"  # as reported to the agent

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}\n  fix: {self.fix}" if self.fix else self.what


class RecipeError(DtjError):
    """The recipe, its arguments or the environment are invalid."""

    exit_code = EXIT_BAD_RECIPE
    reason = "BadRecipe"


class CheckpointError(DtjError):
    """A checkpoint could not be written or read."""


class SupersededError(DtjError):
    """A process that started later owns the folder of this run."""

    exit_code = EXIT_PEER_LOST
    reason = "Superseded"


class MachineError(DtjError):
    """The agent cannot start the ranks or the rendezvous on this machine."""

    exit_code = EXIT_PEER_LOST


class Stopped(SystemExit):
    """Raised by `run.steps` after a stop signal: on every rank after the same step if the stop was agreed."""


def is_peer_loss(error: BaseException) -> bool:
    """The error is a consequence of a lost peer: a collective failed because another rank is gone."""
    text = str(error)
    return isinstance(error, RuntimeError) and bool(_PEER_LOST.search(text)) and bool(_NETWORK.search(text))
