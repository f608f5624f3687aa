"""A wall clock that tests can set: Debian's libfaketime, preloaded into an unmodified process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.cluster import debian

MISSING = "setting the operator's clock needs libfaketime: sudo apt-get install libfaketime"


@cache
def library() -> Path | None:
    """Return the library, installed if permitted; None if it is not available."""
    places = ("lib/*/faketime", "lib64/faketime", "lib/faketime")
    for attempt in ("look", "install"):
        found = [each for place in places for each in Path("/usr").glob(f"{place}/libfaketimeMT.so.1")]
        if found:
            return found[0]
        if attempt == "look" and debian.can_install():
            debian.install("libfaketime", why="the tests that set the operator's clock")
    return None


class Clock:
    """The wall clock of processes started with `environment`; their monotonic clock is not changed."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock-offset"
        self.shift(0)
        faked = {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.environment = faked if library() else {}

    def shift(self, hours: float) -> None:
        """Set the clock this many hours off the true time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{hours * 3600:+.0f}\n")
        new.replace(self._file)
