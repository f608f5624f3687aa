"""Has the kernel's OOM killer killed a process of this container?

If the kernel does not kill the whole container at once, the rank dies of an ordinary SIGKILL; only the
container's control group (cgroup) counts the OOM kill.
"""

from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")
EVENTS = _GROUP / "memory.events"  # of cgroup v2
EVENTS_V1 = _GROUP / "memory/memory.oom_control"
_LIMITS = ("memory.max", "memory.limit_in_bytes")  # beside the counters; the second one of cgroup v1
_REMEMBERED_S = 10.0
_GIB = 2**30
_NO_LIMIT = 2**60  # bytes from which a limit of cgroup v1 is none


class OomKills:
    """OOM kills that have not been taken yet, nor been forgotten because no rank died of them."""

    def __init__(self, *events: Path) -> None:
        self._events = next((path for path in events or (EVENTS, EVENTS_V1) if path.exists()), None)
        self._taken = self._seen = self._count()
        self._look_at = 0.0

    def forget_old(self, now: float) -> None:
        """Called regularly: a kill that is some 10 s old hit a helper or data worker, not a rank.

        A rank with much memory may take seconds to die of it. `now` is seconds of a monotonic clock.
        """
        if now < self._look_at:
            return
        self._look_at = now + _REMEMBERED_S
        self._taken = max(self._taken, self._seen)
        self._seen = self._count()

    def take(self) -> bool:
        """Take one; False if there is none."""
        found = self._count() > self._taken
        self._taken += found
        return found

    def limit(self) -> str:
        """The container's memory limit and how to raise it, for the user; empty if it has none."""
        paths = [self._events.with_name(name) for name in _LIMITS] if self._events else []
        text = next((path.read_text().strip() for path in paths if path.exists()), "")
        if not text.isdecimal() or int(text) >= _NO_LIMIT:
            return ""
        return f"the memory limit is {int(text) / _GIB:.2f} GiB; kubectl dtj submit --memory sets it"

    def _count(self) -> int:
        lines = self._events.read_text().splitlines() if self._events else []
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
