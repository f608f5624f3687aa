"""Whether the kernel has ended a process of this container for want of memory.

Where the container's runtime does not have the whole container ended at once, the rank dies by a SIGKILL like
any other; the container's control group counts it.
"""

from pathlib import Path

EVENTS = Path("/sys/fs/cgroup/memory.events")  # of cgroup v2; a machine's own root group has none


class OomKills:
    """Those that have not been taken yet."""

    def __init__(self, events: Path = EVENTS) -> None:
        self._events = events
        self._taken = self._count()

    def take(self) -> bool:
        """Take one; False where there is none."""
        found = self._count() > self._taken
        self._taken += found
        return found

    def _count(self) -> int:
        try:
            lines = self._events.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
