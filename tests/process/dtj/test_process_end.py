"""Agents and ranks run their exit functions, and leave it to the kernel to free their memory."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.dtj.conftest import PROGRAMS, Finished

PROGRAM = """
import atexit
import typing
from dtj.agent import process_end

class Module:
    def __del__(self):
        print("taken apart")

def at_exit():
    print("exit function")
    for empty in typing._cleanups:  # as triton does
        empty()
    {then}

typing._cleanups.append(lambda: print("emptied caches"))
module = Module()
atexit.register(at_exit)
process_end.end(3)
"""


@pytest.mark.parametrize("then", ["pass", "raise ValueError", "raise SystemExit(5)"])
def test_exit_functions_run_and_nothing_is_taken_apart(then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(then=then)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "exit function\n"), done.stderr


def test_what_the_program_left_in_open_files_is_written(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    """Also what its exit functions and threads pickle after its last line, as `torch.save(model)` does."""
    ended = finish("run", PROGRAMS / "leaves_open.py", OUT=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert "from C" in ended.out
    assert (tmp_path / "plain").read_text() == "one line\n"
    assert gzip.decompress((tmp_path / "zipped").read_bytes()) == b"one line\n"
    assert zipfile.ZipFile(tmp_path / "archive").read("member") == b"one line\n"
    assert {file.name for file in tmp_path.glob("net-*") if file.stat().st_size > 0} == {
        "net-atexit",
        "net-thread",
    }
