"""Ranks of a job die in every way and at every point: is the right rank blamed, with the right cause?

Each crash is a job of its own, of two agents with two ranks each on this machine. The truth is what the dying
rank itself recorded; the verdict is what the operator reads from the termination messages of both pods.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.bench.blame_plan import PLACES, PROCESSES, RANKS, Crash, draw, is_right
from tests.support.commands import Start, commands, warm
from tests.support.ports import free_port

CRASHES = int(os.environ.get("DTJ_BLAME_CRASHES", "200"))
SEED = int(os.environ.get("DTJ_BLAME_SEED", "1"))
REPLICAS = RANKS // PROCESSES


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on one crash. `truth` is None if no rank died after all."""

    crash: Crash
    truth: dict[str, Any] | None
    messages: dict[int, dict[str, Any]]
    has_rank: bool = False
    has_class: bool = False


def judge(start: Start, folder: Path, crash: Crash) -> Verdict:
    """Run the crash and judge it."""
    port = free_port()
    logs = [folder / f"log-{replica}" for replica in range(REPLICAS)]
    agents = [
        start(
            *("run", "--termination-log", logs[replica], "--checkpoint", folder / "saved"),
            *("-m", "tests.bench.blame_program"),
            OUT=folder,
            DEATHS=json.dumps(crash.to_json()),
            NNODES=REPLICAS,
            NODE_RANK=replica,
            NPROC_PER_NODE=PROCESSES,
            MASTER_ADDR="localhost",
            MASTER_PORT=port,
            DTJ_MAX_RESTARTS=crash.restarts,
        )
        for replica in range(REPLICAS)
    ]
    for agent in agents:
        agent.wait()
    messages = {replica: json.loads(log.read_text()) for replica, log in enumerate(logs)}
    notes = [json.loads(file.read_text()) for file in sorted(folder.glob("truth-*[0-9]"))]
    last_life = [note for note in notes if note["life"] == crash.deaths[-1].life]
    if not last_life:
        return Verdict(crash=crash, truth=None, messages=messages)
    has_rank, has_class = is_right(last_life[0], messages)
    return Verdict(crash=crash, truth=last_life[0], messages=messages, has_rank=has_rank, has_class=has_class)


def text(verdicts: list[Verdict]) -> str:
    """Return the section of the page."""
    judged = [verdict for verdict in verdicts if verdict.truth]
    rows: list[tuple[object, ...]] = []
    for place in PLACES:
        here = [verdict for verdict in judged if verdict.crash.place == place]
        rows.append((place, len(here), sum(v.has_rank for v in here), sum(v.has_class for v in here)))
    both = sum(v.has_rank and v.has_class for v in judged)
    rows.append(("all", len(judged), sum(v.has_rank for v in judged), sum(v.has_class for v in judged)))
    ways = Counter(str(verdict.truth["how"]) for verdict in judged if verdict.truth)
    return (
        f"{report.table(('crash during', 'crashes', 'right rank', 'right class'), rows)}\n\n"
        f"Rank and class right in {both} of {len(judged)}"
        f" ({100 * both / max(1, len(judged)):.1f} %), seed {SEED}. "
        f"Ways to die: {', '.join(f'{way} {count}' for way, count in sorted(ways.items()))}."
    )


def main() -> None:
    """Run all crashes and write the section; each wrong verdict is printed in full."""
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="dtj-blame-") as name:
        for number, crash in enumerate(draw(CRASHES, SEED)):
            folder = Path(name) / str(number)
            folder.mkdir()
            with commands(warm(), folder) as start:
                verdict = judge(start, folder, crash)
            verdicts.append(verdict)
            if not (verdict.has_rank and verdict.has_class):
                print(f"crash {number}: {verdict}", flush=True)
    report.write("blame", text(verdicts))
