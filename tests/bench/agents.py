"""Memory and CPU of an agent, and recovery times with more pods: agents of one job on this machine.

One rank per pod, mostly asleep. An agent's memory is the anonymous memory of all processes of a pod minus
that of its rank: what would be free without the agent, if the rank had imported torch by itself. CPU is that
of the agent process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import report
from tests.bench.goodput_truth import Line, parse
from tests.bench.recovery_jobs import PROGRAM
from tests.bench.recovery_local import trains_again_at
from tests.bench.recovery_times import percentile
from tests.support.ports import free_port

PODS = (1, 3, 8)
KILLS = int(os.environ.get("DTJ_AGENTS_KILLS", "10"))
_STEP_S = 0.5
_WATCH_S = 20.0
_WITHIN_S = 120.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(kw_only=True)
class Taken:
    """Results for a job with `pods` pods; the agent is replica 0's, which is also the coordinator."""

    pods: int
    own_mib: float = 0.0
    percent: float = 0.0  # of one CPU
    heals_s: list[float] = field(default_factory=list)


class Job:
    """Agents, with the logs of their ranks' steps ("books") in a folder."""

    def __init__(self, folder: Path, pods: int) -> None:
        self._folder = folder
        self._pods = pods
        port = free_port()
        env = os.environ | {"OMP_NUM_THREADS": "1", "DTJ_CHECKPOINT_DIR": str(folder)}
        env |= {"NNODES": str(pods), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        words = [
            sys.executable,
            "-m",
            "dtj",
            "run",
            "--max-restarts",
            "1000",
            str(PROGRAM),
            f"--step-s={_STEP_S}",
        ]
        with (folder / "log").open("w") as log:
            self.agents = [
                subprocess.Popen(words, env=env | {"NODE_RANK": str(pod)}, stdout=log, stderr=log)
                for pod in range(pods)
            ]

    def texts(self) -> list[str]:
        """The books, by rank."""
        paths = [self._folder / f"book-{rank}.txt" for rank in range(self._pods)]
        return [path.read_text() if path.exists() else "" for path in paths]

    def until_trained(self, rank: int, since: float) -> float:
        """Time at which all ranks had done a step after `rank` restarted; TimeoutError if they never do."""
        deadline = time.monotonic() + _WITHIN_S
        while time.monotonic() < deadline:
            books: list[list[Line]] = [parse(text) for text in self.texts()]
            at = trains_again_at(books, rank, since)
            if at is not None:
                return at
            time.sleep(0.05)
        raise TimeoutError(f"no step in {_WITHIN_S:.0f} s: {(self._folder / 'log').read_text()[-2000:]}")

    def pid(self, rank: int) -> int:
        """Process id of the rank's newest process."""
        starts = [line for line in self.texts()[rank].splitlines() if " start " in line]
        return int(starts[-1].split()[2])

    def kill(self, rank: int) -> float:
        """Seconds from a rank's death until all train again."""
        fault = time.time()
        os.kill(self.pid(rank), signal.SIGKILL)
        return self.until_trained(rank, fault) - fault

    def end(self) -> None:
        """Terminate all agents."""
        for agent in self.agents:
            agent.terminate()
        for agent in self.agents:
            agent.wait(_WITHIN_S)


def own_mib(agent: int, rank: int) -> float:
    """Anonymous memory of an agent and its children, minus that of its rank."""
    forked = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    together = sum(memory_mib(pid, "Pss_Anon") for pid in (agent, *map(int, forked)))
    return together - memory_mib(rank, "Anonymous")


def memory_mib(pid: int, kind: str) -> float:
    """A field of /proc/PID/smaps_rollup, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) / 1024


def cpu_s(pid: int) -> float:
    """CPU seconds used by a process, without its children."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS


@contextlib.contextmanager
def running(pods: int) -> Iterator[Job]:
    """A job that trains; stopped and removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="dtj-agents-") as name:
        job = Job(Path(name), pods)
        try:
            for rank in range(pods):
                job.until_trained(rank, 0.0)
            yield job
        finally:
            job.end()


def measure(pods: int) -> Taken:
    """Measure a job with this number of pods."""
    taken = Taken(pods=pods)
    with running(pods) as job:
        agent = job.agents[0].pid
        before, began = cpu_s(agent), time.monotonic()
        time.sleep(_WATCH_S)
        taken.percent = 100 * (cpu_s(agent) - before) / (time.monotonic() - began)
        taken.own_mib = own_mib(agent, job.pid(0))
        for number in range(KILLS if pods > 1 else 0):
            taken.heals_s.append(job.kill(number % pods))
            time.sleep(2 * _STEP_S)
    return taken


def text(found: list[Taken]) -> str:
    """Return the section of the page."""
    head = (
        "pods", "agent's own memory, MiB", "its CPU, % of one", "ranks killed", "healed after p50, s",
        "the fifth, s", "p99, s",
    )  # fmt: skip
    rows = [
        (
            taken.pods,
            f"{taken.own_mib:.0f}",
            f"{taken.percent:.1f}",
            len(taken.heals_s),
            f"{percentile(taken.heals_s, 0.5):.2f}" if taken.heals_s else "",
            f"{taken.heals_s[4]:.2f}" if len(taken.heals_s) > 4 else "",
            f"{percentile(taken.heals_s, 0.99):.2f}" if taken.heals_s else "",
        )
        for taken in found
    ]
    return report.table(head, rows)


def main() -> None:
    """Measure each size and write the section."""
    report.write("agents", text([measure(pods) for pods in PODS]))
