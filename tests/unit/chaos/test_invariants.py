"""The judge of the chaos runs must itself be beyond doubt: it sees each crime and blames no honest life."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.invariants import JOB, POD, POLICY, SERVICE, Event, remains, violations

Json = dict[str, Any]
param = pytest.param


class Story:
    """A history written by verbs; each is one event, and the next version."""

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
        """An event of a pod: `attempt`, `uid`, `event`, `owner`, and `name` may be told."""
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
    """One crash, honestly dealt with."""
    told = running().pod(1, "Failed", event="MODIFIED")
    told.job("Recovering", attempt=1, restarts={"counted": 1, "total": 1})
    told.pod(0, event="DELETED").pod(1, event="DELETED").pod(0, attempt=1).pod(1, attempt=1)
    return told.job("Running", attempt=1, restarts={"counted": 1, "total": 1})


def conflict(told: Story, what: str) -> Story:
    condition = {"type": "PodsReady", "reason": "NameConflict", "message": f"{what} exists and does not ..."}
    return told.job("Pending", conditions=[condition])


HONEST = [
    param(running(), id="a job that runs"),
    param(restarted(), id="a restart"),
    param(
        running().pod(1, "Failed", event="MODIFIED").pod(1, uid="new"), id="a pod replaced after it had ended"
    ),
    param(conflict(story().pod(1, owner="", name="j-1"), "Pod j-1"), id="a stranger in the way"),
    param(conflict(Story().job(event="ADDED").child(SERVICE, owner=""), "Service j"), id="their Service"),
    param(
        running().pod(0, event="DELETED").job("Succeeded").job("Succeeded", message="x"),
        id="an end told twice",
    ),
    param(story().job("Suspended").job("Pending").pod(0), id="pods after a suspension"),
    param(
        running().job(uid="u", event="DELETED").job(uid="v", event="ADDED").pod(0, uid="w", owner="v"),
        id="another job of the same name",
    ),
]

CRIMES = [
    param(running().pod(1, uid="twin", name="j-x"), "of the same rank was alive", id="a rank lives twice"),
    param(
        running().pod(0, attempt=1, event="ADDED", name="j-9"), "of the same rank", id="twice, by attempts"
    ),
    param(story().pod(0).pod(1, attempt=1), "of attempt 1 was created while", id="attempts overlap"),
    param(
        running().job("Running", restarts={"counted": 11}), "maxRestarts is 10", id="the budget is overdrawn"
    ),
    param(
        story()
        .job("Running", restarts={"counted": 0}, spec={"recovery": {"maxRestarts": 0}})
        .job("Recovering", restarts={"counted": 1}, spec={"recovery": {"maxRestarts": 0}}),
        "maxRestarts is 0",
        id="a budget of none is overdrawn",
    ),
    param(restarted().job("Running", attempt=1, restarts={"counted": 0}), "counted went", id="forgotten"),
    param(
        restarted().job("Running", attempt=0, restarts={"counted": 1, "total": 1}),
        "attempt went from 1 to 0",
        id="back in time",
    ),
    param(restarted().job(), "attempt went from 1 to 0", id="the status is lost"),
    param(
        running().job("Succeeded").job("Running"), "was Succeeded and is Running", id="success is taken back"
    ),
    param(running().job("Failed").job("Succeeded"), "was Failed and is", id="failure is taken back"),
    param(running().job("Failed").pod(1, uid="new", name="j-1b"), "that is Failed", id="born after the end"),
    param(story().job("Suspended").pod(0), "for a job that is Suspended", id="born while suspended"),
    param(conflict(running(), "Pod j-1"), "conflict without one", id="a conflict without a cause"),
    param(
        conflict(story().child(SERVICE, owner="earlier"), "Service j"),
        "conflict without one",
        id="a conflict with what an earlier job of ours left",
    ),
]


@pytest.mark.parametrize("told", HONEST)
def test_honest_lives_are_not_blamed(told: Story) -> None:
    assert violations(told.events) == []


@pytest.mark.parametrize(("told", "words"), CRIMES)
def test_a_crime_is_seen(told: Story, words: str) -> None:
    assert any(words in each for each in violations(told.events)), violations(told.events)


def test_history_is_judged_by_versions_and_not_by_arrival() -> None:
    assert violations(reversed(running().events)) == []
    crime = running().pod(1, uid="twin", name="j-x").events
    assert violations(reversed(crime)) == violations(crime)


def gone() -> Story:
    told = running().pod(0, event="DELETED").pod(1, event="DELETED").network(event="DELETED")
    return told.job(event="DELETED")


def succeeded() -> Story:
    told = running().pod(0, "Succeeded", event="MODIFIED").pod(1, "Succeeded", event="MODIFIED")
    return told.network(event="DELETED").job("Succeeded")


def suspended() -> Story:
    told = running().pod(0, event="DELETED").pod(1, event="DELETED")
    return told.job("Suspended", spec={"replicas": 2, "suspend": True})


@pytest.mark.parametrize(
    "told",
    [
        param(running(), id="runs"),
        param(restarted(), id="runs again"),
        param(gone(), id="is gone"),
        param(running().pod(1, "Succeeded", event="MODIFIED"), id="runs, and a rank is done"),
        param(succeeded(), id="is done"),
        param(suspended(), id="is suspended"),
        param(Story().child(SERVICE, owner=""), id="what is somebody else's may stay"),
    ],
)
def test_a_good_end(told: Story) -> None:
    assert remains(told.events) == []


@pytest.mark.parametrize(
    ("told", "words"),
    [
        param(running().job(event="DELETED"), "Pod ns/j-0 (p0.0) is left", id="orphaned pods"),
        param(gone().child(SERVICE, uid="back"), "Service ns/j (back) is left", id="a Service comes back"),
        param(
            story().pod(0).job("Running"), "Running with 1 pods running or finished", id="a pod is missing"
        ),
        param(story().pod(0).pod(1).job("Starting"), "Starting with 2 pods", id="the phase is behind"),
        param(running().child(POLICY, event="DELETED"), "runs without its NetworkPolicy", id="unprotected"),
        param(running().job("Failed"), "Failed, but still has", id="pods outlive the end"),
        param(succeeded().child(SERVICE, uid="back"), "Succeeded, but still has", id="so does a Service"),
        param(
            running().job("Running", spec={"replicas": 2, "suspend": True}),
            "should be suspended, is Running with 2 pods",
            id="never suspended",
        ),
    ],
)
def test_a_bad_end_is_named(told: Story, words: str) -> None:
    assert any(words in each for each in remains(told.events)), remains(told.events)
