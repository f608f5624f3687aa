"""The agents of one job of the control run or of `hangs`, as two pods would run them, on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.ports import free_port

AGENTS = 2


class Pods:
    """The agents of one job, as processes of this machine; their output goes to files of `folder`."""

    def __init__(self, folder: Path, program: str, *, nproc: int, env: Mapping[str, object]) -> None:
        self.folder = folder
        self.ranks = AGENTS * nproc
        port = free_port()
        self._agents = []
        for index in range(AGENTS):
            own: dict[str, object] = {
                "NNODES": AGENTS,
                "NODE_RANK": index,
                "NPROC_PER_NODE": nproc,
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": port,
                "DTJ_MAX_RESTARTS": 1000,  # a false alarm is counted and must not fail the job
                "DTJ_MAX_RESTARTS_WITHOUT_PROGRESS": 1000,
                "OMP_NUM_THREADS": 1,
                "OUT": folder,
            }
            words = ("run", "--checkpoint", folder / "saved", "-m", program)
            with (folder / f"out-{index}").open("w") as out, (folder / f"err-{index}").open("w") as err:
                self._agents.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "dtj", *map(str, words)],
                        env=os.environ | {name: str(value) for name, value in (own | dict(env)).items()},
                        stdout=out,
                        stderr=err,
                    )
                )

    @property
    def log(self) -> str:
        """The output of all agents, one after the other."""
        return "\n".join((self.folder / f"err-{index}").read_text() for index in range(AGENTS))

    def events(self, rank: int) -> list[dict[str, Any]]:
        """The events that a rank has recorded."""
        path = self.folder / f"events-{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def calms(self, rank: int) -> int:
        """Number of processes of a rank that reached the end of the plan."""
        return [event["kind"] for event in self.events(rank)].count("calm")

    def until(self, holds: Callable[[], bool], *, within_s: float, poll_s: float = 0.1) -> bool:
        """Poll until a condition holds; False if it does not in time, or if an agent has exited."""
        deadline = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > deadline or any(agent.poll() is not None for agent in self._agents):
                return False
            time.sleep(poll_s)
        return True

    def end(self) -> None:
        """Terminate the agents; they write a checkpoint first."""
        for agent in self._agents:
            agent.terminate()
        for agent in self._agents:
            try:
                agent.wait(60)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


@contextlib.contextmanager
def pods(program: str, *, nproc: int, **env: object) -> Iterator[Pods]:
    """A job of two agents that run a module; stopped and removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="dtj-control-") as folder:
        found = Pods(Path(folder), program, nproc=nproc, env=env)
        try:
            yield found
        finally:
            found.end()
