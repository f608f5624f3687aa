"""A wall clock that tests set: Debian's libfaketime before a process that knows nothing of it."""

from __future__ import annotations

from pathlib import Path

from tests.cluster import debian


class Clock:
    """The wall clock of processes that are started with `environment`; their monotonic clock stays honest."""

    def __init__(self, folder: Path) -> None:
        debian.install("libfaketime", why="the tests that set the operator's clock")
        (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
        self._file = folder / "clock-offset"
        self.shift(0)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def shift(self, hours: float) -> None:
        """Set the clock this many hours off the true time, from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{hours * 3600:+.0f}\n")
        new.replace(self._file)
