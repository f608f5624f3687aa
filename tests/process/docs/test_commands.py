"""Runs the commands of the docs pages: `dtj` lines with real ranks, in a folder with our examples.

Recipes get further arguments that make them small. Downloads fail: the proxy leads nowhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, Line, all_blocks, blocks, lines, pages
from tests.support.commands import SMALL, Start, commands, warm

NO_NETWORK = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "all")}
FOUND = {page: [line for block in blocks(page) if block.is_run for line in lines(block)] for page in pages()}
LINES = {page: [line for line in found if not line.on_cluster] for page, found in FOUND.items()}
PYTHON = [block for block in all_blocks("python") if block.marker == "run"]


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    """Return a context that forks processes with torch imported."""
    return warm()


@pytest.fixture
def start(context: ForkServerContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts `dtj` commands, in a folder like a checkout."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(checkout)
    with commands(context, tmp_path) as begin:
        yield begin


@pytest.mark.parametrize(
    "page", [p for p in pages() if LINES[p]], ids=lambda page: str(page.relative_to(ROOT))
)
def test_commands_of_a_page_run(start: Start, page: Path):
    for line in LINES[page]:
        run(start, line)


def run(start: Start, line: Line) -> None:
    """Run one line; fail with its place and output unless it exits with 0."""
    first = line.commands[0]
    if first[0] != "dtj":
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line.text], env=os.environ | NO_NETWORK,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{line.place}: {line.text}\n{done.stdout}{done.stderr}"
        return
    assert len(line.commands) == 1, f"{line.place}: a dtj command in a pipe is not supported here"
    small = [] if "--help" in first else [word for name in SMALL if name in first for word in SMALL[name]]
    ended = start(*first[1:], *small, **NO_NETWORK).wait(deadline_s=500)
    assert ended.code == 0, f"{line.place}: {line.text}\n{ended.out}{ended.err}"


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_python_runs(tmp_path: Path, block: Block):
    (tmp_path / "block.py").write_text(block.text)
    env = os.environ | NO_NETWORK | {"PYTHONPATH": str(ROOT / "trainer/src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "block.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{block.place}\n{done.stdout}{done.stderr}"
