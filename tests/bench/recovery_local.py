"""A rank is killed under `dtj run` and under `torchrun`: the same script, the same machine, in turns.

Two ranks in one agent, with a checkpoint folder so that torchrun's restarted ranks can resume. By default
`torchrun` uses one store for all restarts; with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 each restart gets its
own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.bench import report
from tests.bench.goodput_truth import Line, parse
from tests.bench.recovery_jobs import PROGRAM
from tests.bench.recovery_times import percentile

KILLS = 5  # in each run
RUNS = int(os.environ.get("DTJ_LOCAL_RUNS", "4"))
RANKS = 2
_WITHIN_S = 60.0
_QUIET_S = 2.0
_OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
RUN = ("dtj", "run", "--max-restarts", "1000")
DTJ = (*RUN, "--nproc", str(RANKS))
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "1000")
LAUNCHERS: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "`dtj run`": (DTJ, {}),
    "`torchrun`, a store for each restart": (TORCHRUN, _OWN_STORE),
    "`torchrun`": (TORCHRUN, {}),
}


def trains_again_at(
    books: Sequence[Sequence[Line]], killed: int, fault: float, *, new_step: bool = False
) -> float | None:
    """Time at which all ranks had done a step after the killed one restarted; None until then.

    new_step  one that no rank had done before the fault
    """
    done = max((li.step or 0 for book in books for li in book if new_step and li.at <= fault), default=0)
    began = next((line.at for line in books[killed] if line.step is None and line.at > fault), None)
    if began is None:
        return None
    steps = [next((li.at for li in book if (li.step or 0) > done and li.at > began), None) for book in books]
    found = [step for step in steps if step is not None]
    return max(found) if len(found) == len(steps) else None


def main() -> None:
    """Measure in turns and write the section of the page."""
    taken: dict[str, list[float]] = {name: [] for name in LAUNCHERS}
    tried = dict.fromkeys(LAUNCHERS, 0)
    for _ in range(RUNS):
        for name, (words, env) in LAUNCHERS.items():
            with running(words, env) as folder:
                for number in range(KILLS):
                    tried[name] += 1
                    seconds = kill(folder, number % RANKS)
                    print(name, number, seconds, flush=True)
                    if seconds is None:
                        break  # it will not recover: the next kill needs a fresh run
                    taken[name].append(seconds)
    rows = [[name, tried[name], tried[name] - len(some), *_spread(some)] for name, some in taken.items()]
    head = ["launcher", "kills", f"not training again after {_WITHIN_S:.0f} s", "p50, s", "p99, s"]
    report.write("recovery torchrun", report.table(head, rows))


@contextlib.contextmanager
def running(
    words: Sequence[str], env: Mapping[str, str], arguments: Sequence[str] = ("--step-s=0.1",)
) -> Iterator[Path]:
    """Start the program under a launcher, wait until all ranks train; yields the folder with their books."""
    with tempfile.TemporaryDirectory(prefix="dtj-recovery-") as name:
        folder = Path(name)
        variables = {"OMP_NUM_THREADS": "1", "DTJ_CHECKPOINT_DIR": str(folder / "saved"), **env}
        with (folder / "log").open("w") as log:
            launcher = subprocess.Popen(
                [sys.executable, "-m", *words, str(PROGRAM), *arguments],
                env=os.environ | variables,
                stdout=log,
                stderr=log,
            )
        try:
            if until_trained(folder, 0, 0.0) is None:
                raise RuntimeError(f"{words[0]} never trained: {(folder / 'log').read_text()[-2000:]}")
            yield folder
        finally:
            launcher.terminate()  # only it can stop its ranks: they are in other sessions
            launcher.wait(_WITHIN_S)


def kill(folder: Path, rank: int, *, ranks: int = RANKS, new_step: bool = False) -> float | None:
    """Seconds from the death of a rank until all train again."""
    time.sleep(_QUIET_S)
    fault = time.time()
    os.kill(pids(folder, rank)[-1], signal.SIGKILL)
    at = until_trained(folder, rank, fault, ranks=ranks, new_step=new_step)
    return None if at is None else at - fault


def until_trained(
    folder: Path, rank: int, since: float, *, ranks: int = RANKS, new_step: bool = False
) -> float | None:
    """Poll the books until `trains_again_at` returns a time; None if it does not in time."""
    deadline = time.monotonic() + _WITHIN_S
    while time.monotonic() < deadline:
        books = [parse(book(folder, each)) for each in range(ranks)]
        at = trains_again_at(books, rank, since, new_step=new_step)
        if at is not None:
            return at
        time.sleep(0.1)
    return None


def book(folder: Path, rank: int) -> str:
    """The book of a rank so far."""
    path = folder / "saved" / f"book-{rank}.txt"
    return path.read_text() if path.exists() else ""


def pids(folder: Path, rank: int) -> list[int]:
    """Process ids of this rank, the newest last."""
    return [int(line.split()[2]) for line in book(folder, rank).splitlines() if " start " in line]


def _spread(samples: Sequence[float]) -> list[str]:
    return [f"{percentile(samples, share):.2f}" if samples else "" for share in (0.5, 0.99)]
