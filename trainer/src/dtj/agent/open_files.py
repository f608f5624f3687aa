"""The limit of open files: replica 0 needs one for each agent, and containers often start with 1,024."""

import contextlib
import resource

# Enough for the largest jobs. Some programs close every number below the limit, which may be a billion.
_ENOUGH = 65_536


def wanted(soft: int, hard: int) -> int:
    """The soft limit to set: as many as allowed, up to what is enough, and never fewer than before."""
    if soft == resource.RLIM_INFINITY:
        return soft
    return max(soft, _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH))


def raise_open_files() -> None:
    """Raise this process's limit; ranks inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS states a hard limit that it does not allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted(soft, hard), hard))
