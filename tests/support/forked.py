"""Starts a Python module as a program, forked from a process that has already imported what it needs.

Importing kopf takes three seconds of CPU time, a fork milliseconds. Otherwise the child is like one started
by a shell: it has its own pid, environment, standard streams, signals and exit code.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import runpy
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any


def warmed(*modules: str) -> ForkServerContext:
    """Return a context that forks processes with these modules; the first call in a process sets the list."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.uncollected", *modules, __name__, "tests.support.frozen"])
    return context


def serve(_: ForkServerContext) -> str:
    """Start the server of what `warmed` returned, and return its address; it ends with this process."""
    forkserver.ensure_running()
    server: Any = forkserver._forkserver
    return str(server._forkserver_address)


def join(address: str) -> None:
    """Let this process fork from the server at `address`, which another has started, and not from its own.

    The workers of pytest-xdist share one: what it imports takes 5 s of CPU time.
    """
    server: Any = forkserver._forkserver
    if hasattr(server, "_forkserver_authkey"):  # Python 3.14: it serves only the process that started it
        return
    server._forkserver_address = address
    _, server._forkserver_alive_fd = os.pipe()  # each child gets it, to reach the server as its parent does
    server.ensure_running = resource_tracker.ensure_running


class Forked:
    """A running program, with those methods of asyncio.subprocess.Process that tests use."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal's number if one killed it; None while it runs."""
        return self._process.exitcode

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal; raise ProcessLookupError if it has exited."""
        if self.returncode is not None:
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    async def wait(self) -> int:
        """Wait until it exits and return its exit code."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        sentinel = os.dup(
            self._process.sentinel
        )  # a loop has one reader per descriptor, but several callers may wait
        loop.add_reader(sentinel, ended.set)
        try:
            if self.returncode is None:
                await ended.wait()
        finally:
            loop.remove_reader(sentinel)
            os.close(sentinel)
        self._process.join()
        assert self.returncode is not None
        return self.returncode


def start(
    context: ForkServerContext,
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    out: Path,
    folder: Path,
) -> Forked:
    """Start `python -W error -m module arguments...` in `folder`; its output goes to the file `out`."""
    process = context.Process(target=_run, args=(module, list(arguments), dict(environment), out, folder))
    process.start()
    return Forked(process)


def _run(module: str, arguments: list[str], environment: dict[str, str], out: Path, folder: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with Path(os.devnull).open("rb") as nothing, out.open("wb") as file:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    warnings.simplefilter("error")
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
