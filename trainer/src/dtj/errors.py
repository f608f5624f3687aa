"""What can go wrong, as a small tree; every message says what, which value, and how to mend it.

DtjError                    exit 1
├── RecipeError             exit 78: bad recipe, arguments or environment; a retry cannot help
├── CheckpointError         exit 1: the disk, not the recipe, is at fault
└── MachineError            exit 76: no process, no port; a retry, or another node, may help
Stopped(SystemExit)         not an error: the agreed stop after SIGTERM, exit 75 with a committed checkpoint
"""

import re

from dtj.contract import EXIT_BAD_RECIPE, EXIT_PEER_LOST

# What gloo, NCCL and the store say when the other side is gone.
_PEER_LOST = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|remote process exited|socket timeout"
    r"|timed out waiting|failed to recv|could not connect|wait timeout|ncclRemoteError|recvValue failed"
    r"|sendBytes failed|heartbeat",
    re.IGNORECASE,
)
_NETWORK = re.compile(r"gloo|nccl|tcpstore|socket|store|rendezvous", re.IGNORECASE)


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


class MachineError(DtjError):
    """This machine does not give the agent what it needs to bring the ranks together."""

    exit_code = EXIT_PEER_LOST


class Stopped(SystemExit):
    """Raised out of `run.steps` on every rank at the same step, once a stop was asked for."""


def is_peer_loss(error: BaseException) -> bool:
    """A collective failed because another rank or its machine is gone: secondary, not the cause."""
    text = str(error)
    return isinstance(error, RuntimeError) and bool(_PEER_LOST.search(text)) and bool(_NETWORK.search(text))
