"""What a rank writes about itself (rank/own_stacks.py) -> where it is, and its collectives. Pure."""

import re
import sysconfig
import zlib
from pathlib import Path

from dtj.agent.wire.probe import NOWHERE, Place

# What waits in Python and torch, and torch's call of any operator: the frame of their caller says more.
_WAITING = re.compile(
    r"/(threading|queue|selectors|subprocess)\.py$|/multiprocessing/|/concurrent/futures/"
    r"|/torch/(_ops\.py$|_library/|futures/)"
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_COLLECTIVES = re.compile(r"^NCCL group (\S+): (-?\d+) begun, (-?\d+) done$", re.MULTILINE)
_MAIN = ("Main thread", "Current thread")
_OURS = str(Path(__file__).parents[2])
_CALLERS = re.compile(
    r'(^  File .*\n)(?:  File "<frozen runpy>.*\n)*'
    rf'  File "{re.escape(_OURS)}/cli/program\.py".*\n?(?:  File .*\n?)*',
    re.MULTILINE,
)
_LIBRARIES = (_OURS, sysconfig.get_path("stdlib"), "<")
_PACKAGES = re.compile(r"/(site|dist)-packages/")


def place_of(stacks: str) -> Place:
    """Where the main thread is. It is the thread that handles signals, which faulthandler calls current.

    The place is unknown if that thread is missing: faulthandler writes it last, and 100 threads at most.
    """
    main = next((thread for thread in stacks.split("\n\n") if thread.startswith(_MAIN)), "")
    frames = list(_FRAME.finditer(main))
    if not frames:
        return NOWHERE
    telling = next((f for f in frames if not _WAITING.search(f[1])), frames[0])
    own = next((f for f in frames[frames.index(telling) :] if _is_users(f[1])), telling)
    # The innermost line alone says little: an endless loop may have two lines.
    calls = [(frames[0][1], frames[0][3]), *((f[1], f[2]) for f in frames[1:])]
    return Place(
        frame=_text(telling),
        caller="" if own is telling else _text(own),
        path=zlib.crc32(repr(calls).encode()),
    )


def collectives_of(stacks: str) -> dict[str, tuple[int, int]]:
    """By group of NCCL, the number of collectives that the rank has begun, and of those that are done."""
    return {found[1]: (int(found[2]), int(found[3])) for found in _COLLECTIVES.finditer(stacks)}


def without_callers(stacks: str) -> str:
    """The stacks for the user, without the frames of dtj, click and runpy that called the program."""
    return _CALLERS.sub(r"\1", stacks)


def _text(frame: re.Match[str]) -> str:
    return f"{frame[1]}:{frame[2]} in {frame[3]}"


def _is_users(file: str) -> bool:
    return not file.startswith(_LIBRARIES) and not _PACKAGES.search(file)
