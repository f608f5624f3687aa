"""Phases and what happened, as far as they are known."""

from __future__ import annotations

from typing import Any

from dtj_client.ui import views
from dtj_client.ui.timeline import timeline


def at(minute: int) -> str:
    return f"2026-01-01T12:{minute:02}:00Z"


def job(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "digits", "namespace": "team", "creationTimestamp": at(0), "uid": "u"},
        "spec": {"replicas": 2},
        "status": status,
    }


def test_new_job_waits() -> None:
    assert timeline(job(), [], [])["segments"] == [{"phase": "Waiting", "from": at(0), "to": None}]


def test_phases_before_the_page_was_opened_are_not_invented() -> None:
    found = timeline(job(phase="Running", startTime=at(1)), [("Recovering", at(5)), ("Running", at(6))], [])
    assert [(each["phase"], each["from"], each["to"]) for each in found["segments"]] == [
        ("Waiting", at(0), at(1)),
        ("Unseen", at(1), at(5)),
        ("Recovering", at(5), at(6)),
        ("Running", at(6), None),
    ]


def segments(status: dict[str, Any], *phases: tuple[str, str]) -> list[tuple[str, str, str | None]]:
    found = timeline(job(**status), phases, [])["segments"]
    return [(each["phase"], each["from"], each["to"]) for each in found]


def test_job_that_started_when_it_was_created_did_not_wait() -> None:
    assert segments({"startTime": at(0)}, ("Running", at(5))) == [
        ("Unseen", at(0), at(5)),
        ("Running", at(5), None),
    ]


def test_job_that_failed_within_the_second_of_its_creation_has_a_segment() -> None:
    """The page draws its bar from the first one."""
    assert segments({"startTime": at(0), "phase": "Failed"}, ("Failed", at(0))) == [("Waiting", at(0), at(0))]


def test_time_before_a_suspension_is_not_shown_as_waiting() -> None:
    assert segments({"attempt": 1}, ("Suspended", at(5)))[0] == ("Unseen", at(0), at(5))
    resumed = {"type": "Suspended", "status": "False", "lastTransitionTime": at(7)}
    status = {"attempt": 1, "startTime": at(7), "conditions": [resumed]}
    assert segments(status, ("Running", at(8)))[0] == ("Unseen", at(0), at(8))


def test_job_that_waits_for_its_queue_waits() -> None:
    assert segments({"attempt": 0}, ("Suspended", at(1)))[0] == ("Waiting", at(0), at(1))
    admitted = {"type": "Suspended", "status": "False", "lastTransitionTime": at(7)}
    status = {"attempt": 0, "startTime": at(7), "conditions": [admitted]}
    assert segments(status, ("Running", at(8)))[0] == ("Waiting", at(0), at(7))


def test_end_is_a_mark_and_no_phase() -> None:
    done = job(phase="Failed", startTime=at(1), completionTime=at(9), message="NoProgress")
    found = timeline(done, [("Running", at(1)), ("Failed", at(9))], [])
    assert found["segments"][-1] == {"phase": "Running", "from": at(1), "to": at(9)}
    assert found["marks"][-1] == {"at": at(9), "kind": "failure", "title": "Failed", "text": "NoProgress"}


def test_restarts_have_their_causes_in_the_order_of_time() -> None:
    failure = {"reason": "Exception", "rank": 3, "replica": 1, "node": "a", "at": at(3), "attempt": 0}
    event = {"at": at(4), "type": "Warning", "reason": "Restarting", "message": "1 pod", "count": 2}
    found = timeline(job(startTime=at(1), failures=[failure]), [], [event])
    assert [(mark["kind"], mark["title"], mark["text"]) for mark in found["marks"][2:]] == [
        ("failure", "Exception", "Exception of rank 3 (replica 1) on node a, attempt 0"),
        ("restart", "Restarting", "1 pod (2 times)"),
    ]


def test_last_failure_has_its_whole_message() -> None:
    last = {"reason": "Exception", "replica": 0, "at": at(3)}
    status = {
        "failure": {**last, "message": "long text"},
        "failures": [{**last, "message": "text", "attempt": 2}],
    }
    (found,) = views.failures(status)
    assert (found["message"], found["attempt"]) == ("long text", 2)


def test_replica_without_a_pod_is_a_problem_only_while_the_job_runs() -> None:
    pod = {"metadata": {"name": "digits-1"}, "spec": {"nodeName": "a"}, "status": {"phase": "Running"}}
    running = views.replicas(job(phase="Running"), [pod])
    assert [(each["state"], each["node"], each["bad"]) for each in running] == [
        ("no pod", "", True),
        ("Running", "a", False),
    ]
    assert not views.replicas(job(phase="Succeeded"), [])[0]["bad"]


def test_manifest_is_what_the_user_wrote() -> None:
    made = job(phase="Running")
    made["metadata"]["managedFields"] = [{}]
    assert views.manifest(made) == "metadata:\n  name: digits\n  namespace: team\nspec:\n  replicas: 2"
