"""Ranks really hang, in seven ways: how long until the right rank is named and killed, with default settings?

Two agents with two ranks each, as two pods would run them; the ranks sleep instead of computing. Seeds draw
the rank. Ways whose documented limits are minutes run in jobs of their own, beside the others. The section is
written after each hang, so that a run that is cut short tells what it has seen.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.bench import report
from tests.bench.control import named
from tests.bench.control_agents import AGENTS, Pods, pods
from tests.bench.recovery_times import percentile

SEED = int(os.environ.get("DTJ_HANGS_SEED", "1"))
JOBS = int(os.environ.get("DTJ_HANGS_JOBS", "1"))  # of the fast ways, at the same time
EACH = int(os.environ.get("DTJ_HANGS_EACH", "4"))  # of each of the fast ways, in each of these jobs
# way -> what happens, and the limit for it in seconds
WAYS = {
    "stopped": ("SIGSTOP", 60),
    "asleep": ("sleeps before a collective", 60),
    "loader": ("waits for its data worker, which is stuck", 60),
    "device": ("asleep, the others poll at one line, as a read of a device does", 60),
    "pause": ("stuck in a declared pause of at most 40 s", 100),
    "loop": ("endless loop on one line: a third of the time for ranks at work", 360),
    "save": ("a save stalls: 15 minutes, as no save was longer than 90 s", 960),
}
_SLOW = {
    "loop": int(os.environ.get("DTJ_HANGS_LOOPS", "1")),
    "save": int(os.environ.get("DTJ_HANGS_SAVES", "1")),
}
_LOCK = threading.Lock()
_NPROC = 2
_AHEAD = 6  # steps, so that all ranks read the order in time
_SLACK_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Hang:
    """A hang that was made.

    found_s  from its begin until a rank was named and killed; None if none was
    named    the ranks that were named
    healed   all ranks trained on
    """

    way: str
    rank: int
    found_s: float | None = None
    named: tuple[int, ...] = ()
    healed: bool = False


def one(agents: Pods, number: int, way: str, rank: int) -> Hang:
    """Make a rank hang, wait until that is found, and until all ranks train on."""
    begun, before = len(began(agents, rank)), Counter(named(agents.log))
    after = max(steps(agents.folder)) + _AHEAD
    over = agents.folder / f"found-{number}"
    over.write_bytes(b"\0")
    order(agents.folder, {"way": way, "rank": rank, "after": after, "number": number})
    if not agents.until(lambda: len(began(agents, rank)) > begun, within_s=_SLACK_S):
        return Hang(way=way, rank=rank)
    began_at = began(agents, rank)[-1]
    limit_s = WAYS[way][1] + _SLACK_S
    if not agents.until(lambda: Counter(named(agents.log)) > before, within_s=limit_s):
        return Hang(way=way, rank=rank)
    found_s = time.monotonic() - began_at
    with over.open("r+b") as file:  # ranks have mapped it: it must not be truncated
        file.write(b"1")
    healed = agents.until(lambda: min(steps(agents.folder)) > after + 1, within_s=_SLACK_S)
    found = tuple((Counter(named(agents.log)) - before).elements())  # the log is that of both agents
    return Hang(way=way, rank=rank, found_s=found_s, named=found, healed=healed)


def order(folder: Path, fields: dict[str, object]) -> None:
    """Replace the order that all ranks read after each step."""
    new = folder / "order.new"
    new.write_text(json.dumps(fields))
    new.replace(folder / "order")


def began(agents: Pods, rank: int) -> list[float]:
    """When the hangs of a rank began, by time.monotonic()."""
    return [event["at"] for event in agents.events(rank)]


def steps(folder: Path) -> list[int]:
    """The last step of each rank."""
    files = [folder / f"step-{rank}" for rank in range(AGENTS * _NPROC)]
    return [int(file.read_text() or 0) if file.exists() else 0 for file in files]


def job(ways: list[str], seed: int, found: list[Hang]) -> None:
    """All hangs of one job, one after the other, added to `found`."""
    rng = Random(seed)
    with pods("tests.bench.hangs_program", nproc=_NPROC) as agents:
        if not agents.until(lambda: min(steps(agents.folder)) > 10, within_s=600):
            raise RuntimeError(agents.log[-2000:])
        for number, way in enumerate(ways):
            rank = 0 if way == "save" else rng.randrange(AGENTS * _NPROC)  # rank 0 saves
            hang = one(agents, number, way, rank)
            print(f"job {seed}: {hang}", flush=True)
            with _LOCK:
                found.append(hang)
                report.write("hangs", text(found))
            if not hang.healed or hang.named != (rank,):
                print("\n".join(each for each in agents.log.splitlines() if each.startswith("dtj: ")))
            if not hang.healed:
                break


def text(hangs: list[Hang]) -> str:
    """The section of the page."""
    by_way = defaultdict(list)
    for each in hangs:
        by_way[each.way].append(each)
    head = [
        "hang",
        "limit, s",
        "made",
        "right rank named, and no other",
        "found after p50, s",
        "p99, s",
        "longest, s",
        "all trained on",
    ]
    rows = []
    for way, (what, limit_s) in WAYS.items():
        if made := by_way[way]:
            times = [each.found_s for each in made if each.found_s is not None]
            right = sum(each.named == (each.rank,) for each in made)
            cells = [f"{percentile(times, share):.1f}" if times else "never" for share in (0.5, 0.99, 1.0)]
            rows.append([what, limit_s, len(made), right, *cells, sum(each.healed for each in made)])
    return report.table(head, rows)


def main() -> None:
    """Run the fast ways in some jobs and each slow way in its own; fail if a hang was missed."""
    fast = [way for way in WAYS if way not in _SLOW] * EACH
    jobs = [Random(SEED + number).sample(fast, len(fast)) for number in range(JOBS)]
    jobs += [[way] * times for way, times in _SLOW.items() if times]
    found: list[Hang] = []
    with ThreadPoolExecutor(len(jobs)) as pool:
        for run in [pool.submit(job, ways, SEED + number, found) for number, ways in enumerate(jobs)]:
            run.result()
    if missed := [each for each in found if each.named != (each.rank,)]:
        raise SystemExit(f"not found, or another rank was named: {missed}")
