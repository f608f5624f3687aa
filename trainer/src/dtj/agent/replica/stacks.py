"""Python stacks of this pod's ranks: requested by a signal, read a moment later; see rank/own_stacks.py.

Nothing shows that a rank has written all its stacks, and a stopped rank writes none. So all ranks get the
same time, and more of it while one has not begun or still writes: on a busy machine a healthy rank may get
next to no processor time. Requests that arrive meanwhile get the same answer.
"""

import time
from collections.abc import Callable, Iterable

from dtj.agent.rank.frames import collectives_of, place_of, without_callers
from dtj.agent.rank.process import RankProcess
from dtj.agent.rank.process_usage import process_of

# Time that the ranks get to write their stacks; one that is late gets a little more, again and again.
_STACKS_S = 1.0
_AGAIN_S = 0.25
LONGEST_S = 10.0  # in all
# By now a rank has answered, even with little processor time, unless native code keeps the lock of Python.
_INSIST_S = 4.0
_STOPPED = {"T", "t"}
_NONE = "no stack: the process does not respond\n"


class RankStacks:
    """The stacks of one rank.

    place       of its main thread
    collectives  of NCCL: begun and done, by group
    responds    it wrote something
    is_stopped  its process is stopped, for example by SIGSTOP or a debugger
    is_runnable  its main thread runs, or waits for a processor
    """

    def __init__(self, process: RankProcess) -> None:
        self.process = process
        text = process.read_stacks()
        self.responds = bool(text)
        self.text = without_callers(text) or _NONE
        self.place = place_of(text)
        self.collectives = collectives_of(text)
        state = _state_of(process)
        self.is_stopped, self.is_runnable = state in _STOPPED, state == "R"


def as_text(found: Iterable[RankStacks]) -> str:
    """The text for /stacks; ranks that are gone are missing."""
    parts = [
        f"rank {one.process.rank}, pid {one.process.pid}, step {one.process.heartbeat.step}\n{one.text}"
        for one in found
    ]
    return "\n".join(parts) or "no rank is running\n"


class Stacks:
    """At most one request is in progress."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[list[RankStacks]], None]] = []
        self._until = self._insist_at = 0.0
        self._unread: dict[int, int] = {}  # by pid of those that were asked: bytes when last seen
        self.deadline: float | None = None

    def request(self, processes: Iterable[RankProcess], then: Callable[[list[RankStacks]], None]) -> None:
        """Call `then` with the stacks of all ranks that are alive at that time."""
        self._callbacks.append(then)
        if self.deadline is not None:
            return
        self._unread = {}
        for process in processes:
            process.request_stacks()
            self._unread[process.pid] = 0
        now = time.monotonic()
        self.deadline, self._until, self._insist_at = now + _STACKS_S, now + LONGEST_S, now + _INSIST_S

    def tick(self, processes: Iterable[RankProcess]) -> None:
        """Time has passed."""
        now = time.monotonic()
        if self.deadline is None or now < self.deadline:
            return
        processes = list(processes)
        late = [process for process in processes if self._is_late(process)]
        if late and now < self._until:
            if now >= self._insist_at:
                self._insist_at = self._until
                for process in late:
                    if not self._unread[process.pid]:
                        process.insist_on_stacks()
            self.deadline = now + _AGAIN_S
            return
        self.deadline = None
        found = [RankStacks(process) for process in processes]
        callbacks, self._callbacks = self._callbacks, []
        for then in callbacks:
            then(found)

    def _is_late(self, process: RankProcess) -> bool:
        """It was asked and can answer, but has not begun to write, or has written more since then."""
        if process.pid not in self._unread or _state_of(process) in {"", "Z", *_STOPPED}:
            return False
        before, now = self._unread[process.pid], process.stacks_unread()
        self._unread[process.pid] = now
        return now == 0 or now > before


def _state_of(process: RankProcess) -> str:
    """The letter of `ps`; empty if the process is gone, or cannot be read."""
    found = process_of(process.pid)
    return found.state if found else ""
