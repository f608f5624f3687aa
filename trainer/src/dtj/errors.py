"""The tree of errors. Every message says what happened, which value, and how to fix it.

DtjError                    exit 1
├── RecipeError             exit 78: invalid recipe, arguments or environment; a retry will not help
├── CheckpointError         exit 1: a checkpoint could not be written or read; the recipe is not the cause
│   ├── DamagedError        exit 1: the content of a checkpoint is wrong
│   └── NoSpaceError        exit 1: the volume is full
├── DeviceError             exit 1: a GPU of this machine cannot be used; another machine may help
├── SupersededError         exit 76: a process that started later writes to the run's folder; never restarted
└── MachineError            exit 76: no process or port available; a retry or another node may help
WorkerLostError             a process that loads samples for this rank died
Stopped(SystemExit)         not an error: the agreed stop after SIGTERM, exit 75 with a committed checkpoint
"""

import dis
import operator
import re
import signal
from importlib import import_module
from typing import Any

from dtj.contract import EXIT_BAD_RECIPE, EXIT_PEER_LOST

# Error messages of gloo, NCCL, the store and torch.distributed.rpc when a peer is gone.
_PEER_LOST = re.compile(
    r"connection (was )?(closed|reset|refused|timed out)|broken pipe|remote process exited|socket timeout"
    r"|no route to host|network is unreachable|client socket has timed out|waiting for clients"
    r"|timed out waiting|failed to recv|could not connect|wait timeout|ncclRemoteError|recvValue failed"
    r"|sendBytes failed|heartbeat|originated at tensorpipe/transport",
    re.IGNORECASE,
)
# What CUDA says of a GPU, a link or a driver that is broken; its other errors may be those of the program.
_DEVICE_FAULT = re.compile(
    r"CUDA error: (uncorrectable|hardware stack error|unknown error|CUDA-capable device\(s\) is/are busy)"
    r"|CUDA unknown error|system not yet initialized|CUDA driver initialization failed"
)
# Other libraries (a feature store, a data service) have such errors, too: look for torch's own names.
_NETWORK = re.compile(r"gloo|nccl|tcpstore|c10d|rendezvous|tensorpipe", re.IGNORECASE)
OFTEN_OUT_OF_MEMORY = " (often the kernel's OOM killer: out of memory)"  # of SIGKILL
_TYPES = {"DistNetworkError", "DistStoreError", "DistBackendError"}


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


class DamagedError(CheckpointError):
    """The content of a checkpoint is wrong: to read it again would not help."""


class NoSpaceError(CheckpointError):
    """The volume is full, or this user's quota is used up."""


class DeviceError(DtjError):
    """A GPU of this machine cannot be used. Another machine may help: it is not an error of the recipe."""

    reason = "DeviceFault"


class SupersededError(DtjError):
    """A process that started later owns the folder of this run."""

    exit_code = EXIT_PEER_LOST
    reason = "Superseded"


class MachineError(DtjError):
    """The agent cannot start the ranks or the rendezvous on this machine."""

    exit_code = EXIT_PEER_LOST


class WorkerLostError(Exception):
    """A process that loads samples for this rank was killed."""


class Stopped(SystemExit):
    """Raised by `run.steps` after a stop signal: on every rank after the same step if the stop was agreed."""


def whole(value: Any, what: str, *, least: int, fix: str) -> int:
    """The value as an int, also from NumPy or torch; RecipeError if it is not whole, or below `least`.

    what  begins the message: "seed is"
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise RecipeError(f"{what} {value!r}, expected a whole number of at least {least}", fix=fix)
    return number


def package(name: str, what: str, *, fix: str) -> Any:
    """Import a package that is not always installed, or slow to import; RecipeError if it is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise RecipeError(what, fix=fix) from error


def signal_name(number: int) -> str:
    """A signal's name; most real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def how_it_ended(code: int) -> str:
    """What a child process's exit code says; negative: a signal killed it."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def revealed(error: BaseException) -> BaseException:
    """The disk's error, which torch's writer hides in a RuntimeError; any other error as it is."""
    hidden = error.__context__
    return hidden if isinstance(hidden, OSError) and not isinstance(error, OSError) else error


def is_device_fault(error: BaseException) -> bool:
    """CUDA says that the GPU is broken, if there is one: a machine without GPUs gets some of these errors."""
    return isinstance(error, RuntimeError) and bool(_DEVICE_FAULT.search(str(error)))


def is_peer_loss(error: BaseException) -> bool:
    """The error is a consequence of a lost peer: a collective failed because another rank is gone."""
    return lost_peer(error) is not None


def lost_peer(error: BaseException) -> BaseException | None:
    """The error of a failed collective from which this one follows: itself, or what was being handled then.

    A program may catch it and raise another one, or exit; None if no peer was lost.
    """
    seen: set[int] = set()  # `raise error from error` makes a circle
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if _says_peer_lost(found):
            return found
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return None


def _says_peer_lost(error: BaseException) -> bool:
    if not isinstance(error, RuntimeError) or not _PEER_LOST.search(text := str(error)):
        return False
    is_torchs = type(error).__name__ in _TYPES and type(error).__module__.startswith("torch")
    # What a `raise` of other Python code than torch's made did not fail in a collective.
    return is_torchs or bool(_NETWORK.search(text) and (raised_by(error) or "torch.").startswith("torch."))


def raised_by(error: BaseException) -> str | None:
    """Name of the module whose `raise` made it; None for native code, such as the handler of Ctrl-C."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] != "RAISE_VARARGS":
        return None
    return str(trace.tb_frame.f_globals.get("__name__", "?"))
