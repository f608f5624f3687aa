"""Runs the commands of the docs pages: `dtj` lines with real ranks, in a folder with our examples.

Recipes get arguments that make them small. Downloads fail: the proxy leads nowhere. A command that is also
that of an example is left to the test of that example.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, Line, all_blocks, blocks, lines, pages
from tests.process.dtj import test_examples as examples
from tests.support.commands import Start, commands, small, warm

NO_NETWORK = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "all")}
FOUND = {page: [line for block in blocks(page) if block.is_run for line in lines(block)] for page in pages()}
OF_EXAMPLES = [examples.command(name) for name in examples.TRAINING.keys() - examples.NOT_ON_CPUS]
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
    words = first if "--help" in first else small(first)
    if words in OF_EXAMPLES:
        return
    ended = start(*words[1:], **NO_NETWORK).wait(deadline_s=500)
    assert ended.code == 0, f"{line.place}: {line.text}\n{ended.out}{ended.err}"


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_python_runs(start: Start, tmp_path: Path, block: Block):
    script = tmp_path / "block.py"
    script.write_text(block.text)
    ended = start("python", script, **NO_NETWORK).wait()
    assert ended.code == 0, f"{block.place}\n{ended.out}{ended.err}"
