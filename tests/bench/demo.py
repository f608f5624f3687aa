"""Wall time of `make demo` with an empty and with a filled cache, in a clean clone."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from tests.bench import report


def main() -> None:
    """Measure and write the section of the page."""
    with tempfile.TemporaryDirectory(prefix="dtj-demo-") as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", str(report.ROOT), str(clone)], check=True)
        cache = {"DTJ_CACHE": str(Path(folder) / "cache")}
        rows = [[name, f"{demo(clone, cache):.0f}"] for name in ("cold: nothing cached", "warm: second run")]
        subprocess.run(["make", "-C", str(clone), "cluster-delete"], env=os.environ | cache, check=True)
        report.write("demo", report.table(["make demo", "s"], rows))


def demo(clone: Path, cache: dict[str, str]) -> float:
    """Return the seconds of one `make demo`; raises CalledProcessError if it fails."""
    began = time.monotonic()
    subprocess.run(["make", "-C", str(clone), "demo"], env=os.environ | cache, check=True)
    return time.monotonic() - began
