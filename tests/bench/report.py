"""Benchmark results: shown as Markdown, written into docs/benchmarks.md between markers.

No number on the page is written by hand: `write` replaces the section of one benchmark with the results of
this run.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def seconds(samples: Sequence[float]) -> str:
    """Return median and range of some seconds, for example `1.2 (1.1-1.4)`."""
    return f"{statistics.median(samples):.2f} ({min(samples):.2f}-{max(samples):.2f})"


def circumstances() -> str:
    """Return one line: when, on what machine, at which commit."""
    commit = _git("describe", "--always")
    # Ignore changes of the page itself: the previous benchmark has just written its section.
    if _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{PAGE.relative_to(ROOT)}"):
        commit += "-dirty"
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, Linux {platform.release().split('-')[0]}"
    return f"[M] {datetime.now(UTC):%Y-%m-%d}, {machine}, commit {commit}."


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write(name: str, text: str) -> None:
    """Replace the section `name` of the page; raises ValueError if the page has no such section."""
    page = PAGE.read_text()
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not section.search(page):
        raise ValueError(f"{PAGE} has no section {name!r}: add the lines {begin} and {end} where it belongs")
    PAGE.write_text(section.sub(lambda _: f"{begin}\n{circumstances()}\n\n{text}\n{end}", page))
    print(f"\n## {name}\n\n{text}\n")
