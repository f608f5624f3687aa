"""Has the kernel's OOM killer killed a process of this container?

If the kernel does not kill the whole container at once, the rank dies of an ordinary SIGKILL; only the
container's control group (cgroup) counts the OOM kill. It counts those of a node that is out of memory, too;
under cgroup v2 another counter says whether the container reached its own limit.
"""

from collections import Counter
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")
EVENTS = _GROUP / "memory.events"  # of cgroup v2
EVENTS_V1 = _GROUP / "memory/memory.oom_control"
_KILLS = "oom_kill"
_REACHED = "oom"  # how often the limit was reached; not in cgroup v1
_ELSEWHERE = (
    "the node or the pod had no memory left, and this container had not reached a limit; "
    "request as much memory as it needs"
)
_LIMITS = ("memory.max", "memory.limit_in_bytes")  # beside the counters; the second one of cgroup v1
_REMEMBERED_S = 10.0
_GIB = 2**30
_NO_LIMIT = 2**60  # bytes from which a limit of cgroup v1 is none


class OomKills:
    """OOM kills that have not been taken yet, nor been forgotten because no rank died of them."""

    def __init__(self, *events: Path) -> None:
        self._events = next((path for path in events or (EVENTS, EVENTS_V1) if path.exists()), None)
        self._before = self._seen = self._counters()
        self._taken = self._seen[_KILLS]
        self._look_at = 0.0

    def forget_old(self, now: float) -> None:
        """Called regularly: a kill that is some 10 s old hit a helper or data worker, not a rank.

        A rank with much memory may take seconds to die of it. `now` is seconds of a monotonic clock.
        """
        if now < self._look_at:
            return
        self._look_at = now + _REMEMBERED_S
        self._taken = max(self._taken, self._seen[_KILLS])
        self._before, self._seen = self._seen, self._counters()

    def take(self) -> bool:
        """Take one; False if there is none."""
        found = self._counters()[_KILLS] > self._taken
        self._taken += found
        return found

    def limit(self) -> str:
        """What was out of memory and what to do, for the user; empty if there is no limit to name."""
        now = self._counters()
        if _REACHED in now and now[_REACHED] == self._before[_REACHED]:
            return _ELSEWHERE
        paths = [self._events.with_name(name) for name in _LIMITS] if self._events else []
        text = next((path.read_text().strip() for path in paths if path.exists()), "")
        if not text.isdecimal() or int(text) >= _NO_LIMIT:
            return ""
        return f"the memory limit is {int(text) / _GIB:.2f} GiB; kubectl dtj submit --memory sets it"

    def _counters(self) -> Counter[str]:
        lines = self._events.read_text().splitlines() if self._events else []
        return Counter({name: int(number) for name, number in map(str.split, lines)})
