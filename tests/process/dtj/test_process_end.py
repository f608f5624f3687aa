"""Agents and ranks run their exit functions, and leave it to the kernel to free their memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit
from dtj.agent import process_end

class Module:
    def __del__(self):
        print("taken apart")

def at_exit():
    print("exit function")
    {then}

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
