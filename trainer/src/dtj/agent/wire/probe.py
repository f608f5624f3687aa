"""What two samples of a silent rank show, and what follows for this rank alone. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# What a rank does between the two, see looks.py, in words for the user.
USES_CPU, POLLS = "uses CPU", "wakes up from time to time"
USES_CPU_AT_TIMES = "uses CPU from time to time"  # an endless loop would not sleep
# Innermost Python frames of a main thread that waits for its peers, or for a backward that waits for them.
WAITING_FRAMES = (
    *("torch/distributed/", "torch/autograd/graph.py", "torch/nn/parallel/distributed.py"),
    *(
        "dtj/ranks/agreement.py",
        "dtj/ranks/control_pipe.py",
        "dtj/ranks/process_groups.py",
        "dtj/ranks/waits.py",
        "dtj/healing/handover.py",
        "dtj/ranks/node.py",
    ),
    *("dtj/parallel/average.py", "dtj/parallel/zero.py", "dtj/parallel/stale.py"),
)
# The frame of code that torch.compile generated. A rank that does nothing there waits for a collective.
_COMPILED = re.compile(r"/[a-z2-7]{2}/c[a-z2-7]{51}\.py:\d+ in call$")
# The frame of a main thread that writes or reads a checkpoint; a collective in it has a frame of its own.
_SAVES = "torch/distributed/checkpoint/"
# The frame of a main thread that waits for its own data workers. It polls them, so it is not asleep.
_LOADS = "torch/utils/data/dataloader.py"
# A rank that uses CPU without a pause and stays in one function is given up after this share of the time for
# ranks at work.
_SAME_FUNCTION_SHARE = 1 / 3


class Place(NamedTuple):
    """Where the main thread is.

    frame   its innermost frame outside Python's own waiting code: "file:line in function"; empty if unknown
    caller  the innermost frame of the user's code, if that is a different one; else empty
    path    a number that changes if the thread has entered or left a function since an earlier look
    """

    frame: str = ""
    caller: str = ""
    path: int = 0

    @property
    def text(self) -> str:
        """For the user."""
        return f"{self.frame}, called from {self.caller}" if self.caller else self.frame


NOWHERE = Place()


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What two samples of a silent rank show, some seconds apart.

    place       of its main thread at the second look
    moved       the first look, or an earlier probe in the same silence, found another path
    does        what it and its processes did between the looks (see looks.py); empty if nothing
    responds    it wrote its stacks
    is_stopped  its process is stopped, for example by SIGSTOP or a debugger
    stopped     likewise, the pid of a process that it started; 0 if none is
    asleep_s    seconds before the probe in which its main thread never woke up
    """

    place: Place = NOWHERE
    moved: bool = False
    does: str = ""
    responds: bool = False
    is_stopped: bool = False
    stopped: int = 0
    asleep_s: float = 0.0
    collectives: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """The rank waits for others, rather than keeping them waiting."""
        frame = self.place.frame
        if self.is_stopped or _SAVES in frame:
            return False
        is_compiled = not self.does and _COMPILED.search(frame) is not None
        return is_compiled or any(part in frame for part in WAITING_FRAMES)

    @property
    def loads(self) -> bool:
        """The rank waits for its own data workers."""
        return _LOADS in self.place.frame

    @property
    def works(self) -> bool:
        """The rank may be at work. Waking up to look for a sample is not work."""
        return bool(self.does) and not (self.loads and self.does == POLLS)

    @property
    def patience(self) -> float:
        """Share of the time for ranks at work that it gets."""
        if not self.works:
            return 0.0
        # A main thread that waits for data workers sleeps, whatever they do.
        may_loop = self.does == USES_CPU or (self.loads and self.does == USES_CPU_AT_TIMES)
        return _SAME_FUNCTION_SHARE if may_loop and not self.moved else 1.0
