"""Reports of this pod's ranks -> the document that /status returns. Rank 0's numbers are the job's."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dtj import contract
from dtj.agent.wire.outcome import stamp

_UNKNOWN: dict[str, Any] = {
    **{"metrics": {}, "ranks": [], "missing": []},
    "restarts": {"inPlace": 0, "withoutProgress": 0, "ofNewestPod": None},
}


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
            # What was saved or logged after an earlier step is reported later than the heartbeat of this one.
            step = max(report["step"], self.ranks[rank]["step"] or 0)
            report = report | {"step": step}
            self.ranks[rank]["step"] = step
            if self.state in {"Starting", "Recovering"}:
                self.state = "Running"
        if rank == min(self.ranks):
            self.reported |= {name: report[name] for name in contract.RUN_FIELDS if name in report}

    def ended(self, rank: int, *, failed: bool) -> None:
        """A rank exited."""
        self.ranks[rank]["state"] = "Failed" if failed else "Done"

    def document(
        self, now: datetime, *, job: dict[str, Any] | None, unheard_s: float | None = None
    ) -> dict[str, Any]:
        """All fields of the contract; null if unknown, for example for scripts that do not use dtj.

        job        what only the coordinator knows, see `Coordinator.status_fields`; only on replica 0
        unheard_s  seconds without a word of the coordinator; only on the other replicas
        """
        own = {
            "job": self.job,
            "jobUid": self.uid,
            "replica": self.replica,
            "attempt": self.attempt,
            "generation": self.generation,
            "state": self.state,
            "unheardSeconds": unheard_s,
            "rejoin": True,
            "at": stamp(now),
        }
        found: dict[str, Any] = (
            dict.fromkeys(contract.STATUS_FIELDS) | _UNKNOWN | self.reported | own | (job or {})
        )
        ranks = sorted([*self.ranks.values(), *found["ranks"]], key=lambda rank: rank["rank"])
        return found | {"ranks": ranks}
