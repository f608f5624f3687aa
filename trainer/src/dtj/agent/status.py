"""Reports of this node's ranks -> the document that /status answers. Rank 0's numbers are the job's."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

# What rank 0 reports under the same name as /status shows it.
_FROM_RANK_0 = (
    "step",
    "totalSteps",
    "epoch",
    "loss",
    "metrics",
    "samplesPerSecond",
    "etaSeconds",
    "checkpoint",
)


@dataclass(kw_only=True)
class Status:
    """The present knowledge of one node."""

    job: str = ""
    replica: int = 0
    attempt: int = 0
    state: str = "Starting"
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    reported: dict[str, Any] = field(default_factory=dict)

    def started(self, rank: int, pid: int) -> None:
        """A rank was forked."""
        self.ranks[rank] = {"rank": rank, "pid": pid, "state": "Running", "step": None}

    def hear(self, rank: int, report: dict[str, Any]) -> None:
        """A rank reported some fields; the lowest rank of this node speaks for it."""
        if "step" in report:
            self.ranks[rank]["step"] = report["step"]
            if self.state == "Starting":
                self.state = "Running"
        if rank == min(self.ranks):
            self.reported |= {name: report[name] for name in _FROM_RANK_0 if name in report}

    def ended(self, rank: int, *, failed: bool) -> None:
        """A rank is gone."""
        self.ranks[rank]["state"] = "Failed" if failed else "Done"

    @property
    def checkpoint(self) -> str | None:
        """Path of the newest committed checkpoint, where this node knows it."""
        found = self.reported.get("checkpoint")
        return found["path"] if found else None

    def document(self, now: datetime) -> dict[str, Any]:
        """All fields of the contract; null where nothing is known, as with scripts that do not use dtj."""
        empty = dict.fromkeys(_FROM_RANK_0) | {"metrics": {}}
        return {
            "job": self.job,
            "replica": self.replica,
            "attempt": self.attempt,
            "generation": 0,
            "state": self.state,
            **empty,
            **self.reported,
            "ranks": [self.ranks[rank] for rank in sorted(self.ranks)],
            "at": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
