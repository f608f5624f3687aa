"""How much memory this container has left."""

from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def bytes_left(group: Path = _GROUP, meminfo: Path = _MEMINFO) -> int | None:
    """Memory that processes of this container can still allocate; None if the system does not tell.

    The kernel drops the cache of files that were not used lately before it runs out of memory.
    """
    v1 = group / "memory"
    limits = [
        _left(group / "memory.max", group / "memory.current", group / "memory.stat", "inactive_file"),
        _left(
            v1 / "memory.limit_in_bytes",
            v1 / "memory.usage_in_bytes",
            v1 / "memory.stat",
            "total_inactive_file",
        ),
        _of_machine(meminfo),
    ]
    return min((each for each in limits if each is not None), default=None)


def _left(limit: Path, used: Path, stat: Path, cache: str) -> int | None:
    try:
        most, now = limit.read_text().strip(), int(used.read_text())
        cached = dict(line.split(maxsplit=1) for line in stat.read_text().splitlines())[cache]
    except (OSError, ValueError, KeyError):
        return None
    return None if most == "max" else max(0, int(most) - now + int(cached))


def _of_machine(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
