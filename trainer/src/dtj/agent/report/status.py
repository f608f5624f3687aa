"""Reports of this pod's ranks -> the document that /status returns. Rank 0's numbers are the job's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dtj import contract
from dtj.agent.wire.outcome import stamp

# Ranks of other replicas, the lowest first, and missing replicas are listed up to this number: the document
# must fit into one datagram.
MAX_LISTED = 1000


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What only the coordinator knows; the fields are those of the contract."""

    generation: int = 0
    world_size: int | None = None
    steps: Mapping[int, int] = field(default_factory=dict)
    state_of: Callable[[int], str] = lambda _: "Running"
    slowest: dict[str, Any] | None = None
    hang: dict[str, Any] | None = None
    missing: Sequence[dict[str, Any]] = ()
    in_place: int = 0
    without_progress: int = 0
    of_newest_pod: int | None = None
    failure: dict[str, Any] | None = None
    ledger: dict[str, float] | None = None


@dataclass(kw_only=True)
class Status:
    """What the agent of one replica knows now."""

    job: str = ""
    uid: str = ""  # of the job
    replica: int = 0
    attempt: int = 0
    generation: int = 0
    state: str = "Starting"
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    reported: dict[str, Any] = field(default_factory=dict)

    def formed(self, generation: int) -> None:
        """A generation starts."""
        self.generation = generation
        self.state = "Starting" if generation == 1 else "Recovering"

    def started(self, rank: int, pid: int) -> None:
        """A rank was forked."""
        self.ranks[rank] = {"rank": rank, "pid": pid, "state": "Running", "step": None}

    def update(self, rank: int, report: dict[str, Any]) -> None:
        """A rank reported some fields; the lowest rank reports for the replica."""
        if "step" in report:
            self.ranks[rank]["step"] = report["step"]
            if self.state in {"Starting", "Recovering"}:
                self.state = "Running"
        if rank == min(self.ranks):
            self.reported |= {name: report[name] for name in contract.RUN_FIELDS if name in report}

    def ended(self, rank: int, *, failed: bool) -> None:
        """A rank exited."""
        self.ranks[rank]["state"] = "Failed" if failed else "Done"

    def document(self, now: datetime, *, job: Facts | None, unheard_s: float | None = None) -> dict[str, Any]:
        """All fields of the contract; null if unknown, for example for scripts that do not use dtj.

        job        what the coordinator knows about the whole job; only on replica 0
        unheard_s  seconds without a word of the coordinator; only on the other replicas
        """
        empty = dict.fromkeys(contract.RUN_FIELDS) | {"metrics": {}}
        known = job or Facts(generation=self.generation)
        others = sorted(known.steps.keys() - self.ranks.keys())[:MAX_LISTED]
        remote = [
            {"rank": rank, "pid": None, "state": known.state_of(rank), "step": known.steps[rank]}
            for rank in others
        ]
        return {
            "job": self.job,
            "jobUid": self.uid,
            "replica": self.replica,
            "attempt": self.attempt,
            "generation": known.generation,
            "state": self.state,
            "worldSize": known.world_size,
            **empty,
            **self.reported,
            "ranks": sorted([*self.ranks.values(), *remote], key=lambda rank: rank["rank"]),
            "slowestRank": known.slowest["rank"] if known.slowest else None,
            "slowest": known.slowest,
            "hang": known.hang,
            "missing": known.missing[:MAX_LISTED],
            "unheardSeconds": unheard_s,
            "rejoin": True,
            "restarts": {
                "inPlace": known.in_place,
                "withoutProgress": known.without_progress,
                "ofNewestPod": known.of_newest_pod,
            },
            "failure": known.failure,
            "ledger": known.ledger,
            "at": stamp(now),
        }
