"""The checker of the chaos runs finds each kind of violation and has no false positives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.invariants import JOB, POD, POLICY, SERVICE, Event, remains, violations

Json = dict[str, Any]
param = pytest.param


class Story:
    """A builder of histories; each call adds one event with the next resourceVersion."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def _tell(self, kind: str, type_: str, name: str, uid: str, **parts: Any) -> Story:
        meta = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(len(self.events) + 1)}
        meta |= parts.pop("meta", {})
        self.events.append(Event(kind, type_, {"metadata": meta, **parts}))
        return self

    def job(self, phase: str = "", *, uid: str = "u", event: str = "MODIFIED", **status: Any) -> Story:
        spec = status.pop("spec", {"replicas": 2})
        return self._tell(JOB, event, "j", uid, spec=spec, status={"phase": phase, **status} if phase else {})

    def _owned(self, owner: str, name: str = "j") -> Json:
        return {"ownerReferences": [{"kind": JOB, "name": name, "uid": owner, "controller": True}]}

    def pod(self, index: int, phase: str = "Running", **how: Any) -> Story:
        """Add an event of a pod; `how` may set `attempt`, `uid`, `event`, `owner` and `name`."""
        attempt, owner = how.get("attempt", 0), how.get("owner", "u")
        labels = {"dtj.dev/replica-index": str(index), "dtj.dev/attempt": str(attempt)}
        uid = how.get("uid", f"p{index}.{attempt}")
        meta = {"labels": labels, **(self._owned(owner) if owner else {})}
        name = how.get("name", f"j-{index}")
        return self._tell(POD, how.get("event", "ADDED"), name, uid, meta=meta, status={"phase": phase})

    def child(self, kind: str, event: str = "ADDED", owner: str = "u", uid: str = "") -> Story:
        meta = self._owned(owner) if owner else {}
        return self._tell(kind, event, "j", uid or f"{kind}-{owner}", meta=meta)

    def network(self, event: str = "ADDED", owner: str = "u") -> Story:
        return self.child(SERVICE, event, owner).child(POLICY, event, owner)


def story() -> Story:
    return Story().job(event="ADDED").network()


def running() -> Story:
    return story().pod(0).pod(1).job("Running", attempt=0, restarts={"counted": 0, "total": 0})


def restarted() -> Story:
    """One crash, handled correctly."""
    history = running().pod(1, "Failed", event="MODIFIED")
    history.job("Recovering", attempt=1, restarts={"counted": 1, "total": 1})
    history.pod(0, event="DELETED").pod(1, event="DELETED").pod(0, attempt=1).pod(1, attempt=1)
    return history.job("Running", attempt=1, restarts={"counted": 1, "total": 1})


def conflict(history: Story, what: str) -> Story:
    condition = {"type": "PodsReady", "reason": "NameConflict", "message": f"{what} exists and does not ..."}
    return history.job("Pending", conditions=[condition])


def refused(history: Story) -> Story:
    condition = {"type": "Failed", "reason": "BadSpec", "message": "spec.cleanPodPolicy: invalid value"}
    return history.job("Failed", conditions=[condition])


VALID = [
    param(refused(Story().job("Pending", event="ADDED")), id="a value is refused before anything ran"),
    param(running(), id="a running job"),
    param(restarted(), id="a restart"),
    param(
        running().pod(1, "Failed", event="MODIFIED").pod(1, uid="new"), id="a pod is replaced after it failed"
    ),
    param(
        conflict(story().pod(1, owner="", name="j-1"), "Pod j-1"), id="a pod of another owner has the name"
    ),
    param(
        conflict(Story().job(event="ADDED").child(SERVICE, owner=""), "Service j"),
        id="a Service of another owner has the name",
    ),
    param(
        running().pod(0, event="DELETED").job("Succeeded").job("Succeeded", message="x"),
        id="the final phase is reported twice",
    ),
    param(story().job("Suspended").job("Pending").pod(0), id="pods after a suspension"),
    param(
        running().job(uid="u", event="DELETED").job(uid="v", event="ADDED").pod(0, uid="w", owner="v"),
        id="another job of the same name",
    ),
]

INVALID = [
    param(
        running().pod(1, uid="twin", name="j-x"),
        "of the same rank was alive",
        id="two live pods of a replica",
    ),
    param(
        running().pod(0, attempt=1, event="ADDED", name="j-9"),
        "of the same rank",
        id="two live pods of a replica, of different attempts",
    ),
    param(story().pod(0).pod(1, attempt=1), "of attempt 1 was created while", id="attempts overlap"),
    param(
        running().job("Running", restarts={"counted": 11}),
        "maxRestarts is 10",
        id="more restarts than the budget",
    ),
    param(
        story()
        .job("Running", restarts={"counted": 0}, spec={"recovery": {"maxRestarts": 0}})
        .job("Recovering", restarts={"counted": 1}, spec={"recovery": {"maxRestarts": 0}}),
        "maxRestarts is 0",
        id="a restart with a budget of 0",
    ),
    param(
        restarted().job("Running", attempt=1, restarts={"counted": 0}),
        "counted went",
        id="a counted restart is forgotten",
    ),
    param(
        restarted().job("Running", attempt=0, restarts={"counted": 1, "total": 1}),
        "attempt went from 1 to 0",
        id="the attempt decreases",
    ),
    param(restarted().job(), "attempt went from 1 to 0", id="the status is lost"),
    param(
        running().job("Succeeded").job("Running"), "was Succeeded and is Running", id="success is reverted"
    ),
    param(running().job("Failed").job("Succeeded"), "was Failed and is", id="failure is reverted"),
    param(
        running().job("Failed").pod(1, uid="new", name="j-1b"),
        "that is Failed",
        id="a pod is created after the end",
    ),
    param(
        story().job("Suspended").pod(0), "for a job that is Suspended", id="a pod is created while suspended"
    ),
    param(conflict(running(), "Pod j-1"), "conflict without one", id="a conflict without another owner"),
    param(refused(running()), "failed with BadSpec", id="a value is refused after the job has run"),
    param(
        conflict(story().child(SERVICE, owner="earlier"), "Service j"),
        "conflict without one",
        id="a conflict with an object of an earlier job of ours",
    ),
]


@pytest.mark.parametrize("history", VALID)
def test_valid_history_has_no_violation(history: Story) -> None:
    assert violations(history.events) == []


@pytest.mark.parametrize(("history", "words"), INVALID)
def test_violation_is_found(history: Story, words: str) -> None:
    assert any(words in each for each in violations(history.events)), violations(history.events)


def test_events_are_ordered_by_version_and_not_by_arrival() -> None:
    assert violations(reversed(running().events)) == []
    invalid = running().pod(1, uid="twin", name="j-x").events
    assert violations(reversed(invalid)) == violations(invalid)


def gone() -> Story:
    history = running().pod(0, event="DELETED").pod(1, event="DELETED").network(event="DELETED")
    return history.job(event="DELETED")


def succeeded() -> Story:
    history = running().pod(0, "Succeeded", event="MODIFIED").pod(1, "Succeeded", event="MODIFIED")
    return history.network(event="DELETED").job("Succeeded")


def suspended() -> Story:
    history = running().pod(0, event="DELETED").pod(1, event="DELETED")
    return history.job("Suspended", spec={"replicas": 2, "suspend": True})


@pytest.mark.parametrize(
    "history",
    [
        param(running(), id="running"),
        param(restarted(), id="running after a restart"),
        param(gone(), id="deleted"),
        param(running().pod(1, "Succeeded", event="MODIFIED"), id="running, one replica succeeded"),
        param(succeeded(), id="succeeded"),
        param(suspended(), id="suspended"),
        param(Story().child(SERVICE, owner=""), id="an object of another owner may stay"),
    ],
)
def test_valid_end_leaves_nothing_to_report(history: Story) -> None:
    assert remains(history.events) == []


@pytest.mark.parametrize(
    ("history", "words"),
    [
        param(running().job(event="DELETED"), "Pod ns/j-0 (p0.0) is left", id="orphaned pods"),
        param(gone().child(SERVICE, uid="back"), "Service ns/j (back) is left", id="a Service comes back"),
        param(
            story().pod(0).job("Running"), "Running with 1 pods running or finished", id="a pod is missing"
        ),
        param(story().pod(0).pod(1).job("Starting"), "Starting with 2 pods", id="the phase is out of date"),
        param(
            running().child(POLICY, event="DELETED"),
            "runs without its NetworkPolicy",
            id="the NetworkPolicy is missing",
        ),
        param(running().job("Failed"), "Failed, but still has", id="a finished job still has pods"),
        param(
            succeeded().child(SERVICE, uid="back"),
            "Succeeded, but still has",
            id="a finished job still has a Service",
        ),
        param(
            running().job("Running", spec={"replicas": 2, "suspend": True}),
            "should be suspended, is Running with 2 pods",
            id="never suspended",
        ),
    ],
)
def test_invalid_end_is_reported(history: Story, words: str) -> None:
    assert any(words in each for each in remains(history.events)), remains(history.events)
