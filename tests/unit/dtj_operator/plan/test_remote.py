"""A job that MultiKueue runs in another cluster has a Workload here, no pods, and the status of its copy."""

from typing import Any

import msgspec
import pytest

from dtj_operator.model import spec, times
from dtj_operator.model.views import ConditionView, WorkloadView
from dtj_operator.plan.actions import (
    Create,
    CreatePod,
    Decision,
    Delete,
    DeleteJob,
    Fail,
    Resume,
    Suspend,
    UpdateWorkload,
)
from dtj_operator.plan.planner import plan
from dtj_operator.plan.remote import STOP_S
from dtj_operator.plan.report.status import new_status
from tests.support.builders import NOW, JobBuilder, at, job

param = pytest.param
THEIRS = job().replicas(2).wants(managedBy="kueue.x-k8s.io/multikueue")
REMOTE = THEIRS.labelled(queue_name="gpus")
RESERVED = REMOTE.workload("QuotaReserved", "Admitted")
GRACE_S = 30.0


def evicted(since: float | None) -> WorkloadView:
    """Its Workload with the quota that Kueue wants back."""
    conditions = ConditionView(
        type="Evicted",
        status="True",
        reason="Preempted",
        last_transition_time=None if since is None else times.rfc3339(since),
    )
    return msgspec.structs.replace(RESERVED, conditions=(*RESERVED.conditions, conditions))


def decided(given: JobBuilder) -> Decision:
    return plan(given.snapshot())


def test_job_is_ours_to_queue_if_it_has_a_queue() -> None:
    assert not spec.managed_by_us(THEIRS.raw())
    assert spec.managed_by_us(REMOTE.raw())
    assert not spec.managed_by_us(REMOTE.wants(managedBy="example.com/other").raw())


def test_it_waits_like_any_job_in_a_queue() -> None:
    first = decided(REMOTE.in_queue())
    assert isinstance(first.verdict, Suspend)
    status = new_status(REMOTE.in_queue().snapshot(), first.verdict)
    assert (status["phase"], "Workload is in queue gpus" in status["message"]) == ("Suspended", True)
    (made,) = decided(REMOTE.in_queue().stored(status)).actions
    assert isinstance(made, Create)


@pytest.mark.parametrize(
    "given",
    [
        param(REMOTE.was("Suspended").in_queue(RESERVED), id="quota reserved"),
        param(REMOTE.was("Running").in_queue(RESERVED), id="its copy runs"),
        param(REMOTE.was("Running").in_queue(problem="Kueue is gone"), id="Kueue is gone"),
        param(REMOTE.was("Running").in_queue(evicted(NOW)), id="evicted a moment ago"),
    ],
)
def test_status_of_its_copy_is_left_alone_and_no_pod_is_created(given: JobBuilder) -> None:
    decision = decided(given)
    assert decision.verdict is None
    assert all(isinstance(action, UpdateWorkload) for action in decision.actions)
    assert new_status(given.snapshot(), None) == given.snapshot().memory.raw


@pytest.mark.parametrize(
    ("status", "reason"), [("True", "Started"), ("False", "WaitForStart"), ("", "WaitForStart")]
)
def test_kueue_knows_whether_the_pods_of_its_copy_are_ready(status: str, reason: str) -> None:
    conditions = [{"type": "PodsReady", "status": status, "message": "2 of 2"}] if status else []
    (told,) = decided(REMOTE.was("Running", conditions=conditions).in_queue(RESERVED)).actions
    assert isinstance(told, UpdateWorkload)
    (found,) = told.conditions
    assert (found["type"], found["reason"]) == ("PodsReady", reason)


@pytest.mark.parametrize(
    ("since", "released"),
    [(NOW - GRACE_S - STOP_S, True), (NOW - GRACE_S, False), (None, False)],
)
def test_quota_is_given_back_once_its_copy_has_had_its_grace_period(
    since: float | None, released: bool
) -> None:
    decision = decided(REMOTE.was("Running").in_queue(evicted(since)))
    told: list[Any] = [each for each in decision.actions if isinstance(each, UpdateWorkload)]
    assert [each.releases for each in told] == [True] * released
    if not released:
        assert decision.requeue_at == (NOW if since is None else since) + GRACE_S + STOP_S


def test_no_pod_is_created_whatever_its_workload_says() -> None:
    """Such as Admitted, from which Kueue has just taken the admission."""
    odd = msgspec.structs.replace(RESERVED, admission=None)
    for phase in ("", "Suspended", "Pending", "Running"):
        decision = decided(REMOTE.was(phase).with_network().in_queue(odd))
        assert not any(isinstance(action, CreatePod) for action in decision.actions)
        assert decision.verdict is None or isinstance(decision.verdict, Resume)


@pytest.mark.parametrize(
    "changed",
    [param({"suspend": True}, id="suspended"), param({"replicas": 3}, id="asks for more")],
)
def test_its_copy_ends_with_its_workload(changed: dict[str, Any]) -> None:
    given = REMOTE.was("Running").wants(**changed).in_queue(RESERVED)
    stopped = decided(given)
    assert isinstance(stopped.verdict, Suspend)
    after = given.stored(new_status(given.snapshot(), stopped.verdict))
    assert Delete(RESERVED) in decided(after).actions


def test_nothing_is_decided_about_an_end_but_when_the_job_goes() -> None:
    ended = REMOTE.was("Succeeded", completionTime=at(-5)).in_queue(RESERVED)
    assert decided(ended).actions == ()
    assert decided(ended.wants(ttlSecondsAfterFinished=1)).actions == (DeleteJob(),)


def test_it_fails_if_it_can_run_nowhere() -> None:
    assert isinstance(decided(REMOTE.wants(masterPort="x")).verdict, Fail)
