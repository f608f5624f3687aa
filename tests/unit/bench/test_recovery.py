"""The table of recovery times, and the rounds of lost nodes."""

import contextlib
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.bench.recovery import A_JOB, text
from tests.bench.recovery_nodes import JOBS, lost_nodes
from tests.bench.recovery_trial import Job, Trial
from tests.cluster import faults
from tests.cluster.kind import Cluster
from tests.support.kubectl import NeverHappenedError


def test_table_has_the_stages_that_occurred_and_counts_jobs_that_never_recovered():
    healed = [Trial(number=n, spent={"detect": 0.1 * n, "all": float(n)}) for n in (1, 2, A_JOB)]
    found = text([*healed, Trial(number=3, spent={})])
    assert "| seconds | faults | detect | **all** |" in found
    assert "| p50 | 3 | 0.20 | 2.00 |" in found
    assert "fifth fault of each job | 1 | 0.50 | 5.00 |" in found
    assert found.endswith("1 of 4 never trained again.")
    assert "never" not in text(healed)


@dataclass(kw_only=True)
class Stub:
    """Replaces the cluster and every job on it; `troubles`: name of a job -> what goes wrong."""

    troubles: dict[str, str] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    name: str = ""
    workers: tuple[str, ...] = ("a", "b")

    @property
    def pods(self) -> list[str]:
        return [f"{self.name}/0", f"{self.name}/1"]

    @property
    def kubectl(self) -> "Stub":
        return self

    def make(self, name: str) -> Job:
        assert name not in self.made, "a name is used only once"
        self.made.append(name)
        return cast(Job, Stub(troubles=self.troubles, name=name))

    def until(self, *_: object) -> None:
        """Every node is ready."""

    def settle(self) -> None:
        if self.troubles.get(self.name) == "does not settle":
            raise NeverHappenedError("no step")

    def node(self, pod: str) -> str:
        return "ab"[0 if self.troubles.get(self.name) == "elsewhere" else int(pod[-1])]

    def uid(self, pod: str) -> str:
        return pod

    def recover(self, *_: Any) -> dict[str, float]:
        if self.troubles.get(self.name) == "cannot be read":
            raise KeyError("metadata")
        return {"all": 60.0}

    def delete_job(self) -> None:
        """Do nothing."""


def rounds(monkeypatch: pytest.MonkeyPatch, stub: Stub, losses: int) -> list[Trial]:
    monkeypatch.setattr(faults, "without_power", lambda *_: contextlib.nullcontext())
    return list(lost_nodes(cast(Cluster, stub), stub.make, losses=losses))


def test_rounds_of_lost_nodes_repeat_until_enough_pods_are_lost(monkeypatch: pytest.MonkeyPatch):
    stub = Stub(troubles={"node-0-1": "elsewhere", "node-0-2": "does not settle"})
    found = rounds(monkeypatch, stub, 2 * JOBS)
    assert len(found) == 3 * JOBS - 2
    assert len(stub.made) == 3 * JOBS


def test_loss_that_cannot_be_measured_is_reported(monkeypatch: pytest.MonkeyPatch):
    found = rounds(monkeypatch, Stub(troubles={"node-0-0": "cannot be read"}), JOBS)
    assert sorted(bool(trial.spent) for trial in found) == [False] + [True] * (JOBS - 1)


def test_rounds_without_a_result_stop_after_a_limit(monkeypatch: pytest.MonkeyPatch):
    troubles = {f"node-{number}-{index}": "does not settle" for number in range(9) for index in range(JOBS)}
    assert rounds(monkeypatch, Stub(troubles=troubles), 2 * JOBS) == []
