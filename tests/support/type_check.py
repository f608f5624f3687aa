"""Runs mypy. What it found out about other packages is kept beside them, for new clones of this repository.

Without that, the first run in a clone takes 90 s, most of it for torch.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CACHE = Path(".mypy_cache")
KEPT = Path(sys.prefix, "mypy-cache")  # mypy checks again what has changed since


def main() -> int:
    """Check the types of this repository; return mypy's exit status."""
    return check(lambda: subprocess.call([Path(sys.executable).with_name("mypy")]), cache=CACHE, kept=KEPT)


def check(mypy: Callable[[], int], *, cache: Path, kept: Path) -> int:
    """Run mypy with the kept cache if it has none; keep its cache if none is kept and all types are right."""
    if kept.exists() and not cache.exists():
        copy(kept, cache)
    status = mypy()
    if status == 0 and not kept.exists():
        copy(cache, kept)
    return status


def copy(source: Path, target: Path) -> None:
    """Copy a folder, whole or not at all; nothing if another process has made the target meanwhile."""
    part = target.with_name(f"{target.name}-{os.getpid()}")
    try:
        shutil.copytree(source, part)
        with contextlib.suppress(OSError):
            part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
