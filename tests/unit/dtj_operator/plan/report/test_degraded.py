"""Hung and slow ranks, failed saves: how the status names them, once per incident."""

import pytest

from dtj_operator.model.agent_status import Hung, SilentReplica, Straggler
from dtj_operator.plan.report import pace
from dtj_operator.plan.report.status import events, new_status
from dtj_operator.plan.snapshot import Silence
from tests.support.builders import NOW, JobBuilder, at, job, pod

param = pytest.param
WHO = "rank 1 (replica 1) on node worker-2"
CALM = job().replicas(2).running().but(pod(1).running().on("worker-2"))
SLOW = CALM.answering(slowest=Straggler(rank=1, replica=1, ratio=2.13))
FULL = CALM.answering(save_failure="cannot write step 20: disk full (newest checkpoint: of step 10)")
HANGS = CALM.answering(hang=Hung(ranks=(1,), message="no step for 33 s"))
CUT_OFF = CALM.was("Running", lastTransitionTime=at(-120)).answering(
    missing=(SilentReplica(replica=1, seconds=125),)
)


def unanswered_for(seconds: float, *, is_heard: bool = False) -> JobBuilder:
    silence = Silence(since=NOW - seconds, is_heard=is_heard)
    return CALM.but(pod(0).running().on("worker-1")).seeing(coordinator_silence=silence)


def healthy(given: JobBuilder) -> tuple[str, str, str]:
    found = next(c for c in new_status(given.snapshot(), None)["conditions"] if c["type"] == "Healthy")
    return found["status"], found["reason"], found["message"]


@pytest.mark.parametrize(
    ("given", "reason", "message"),
    [
        param(
            SLOW,
            "Straggler",
            f"{WHO} takes 2.1 times as long as the other ranks for its part of a step",
            id="a rank is slow",
        ),
        param(
            CALM.wants(processesPerReplica=2).answering(slowest=Straggler(rank=3)),
            "Straggler",
            "rank 3 (replica 1) on node worker-2 takes longer than the other ranks for its part of a step",
            id="an agent that reports only the rank",
        ),
        param(
            HANGS,
            "Hang",
            f"{WHO} is hung: no step for 33 s; not restarted because spec.hang.action is Report",
            id="a rank hangs",
        ),
        param(
            CALM.wants(processesPerReplica=4).answering(hang=Hung(ranks=tuple(range(7)))),
            "Hang",
            ", ".join(f"rank {r} (replica 0)" for r in range(4))
            + ", rank 4 (replica 1) on node worker-2, 2 more are hung; "
            "not restarted because spec.hang.action is Report",
            id="many hang",
        ),
        param(
            FULL,
            "SaveFailed",
            "training continues, but no checkpoint can be written: "
            "cannot write step 20: disk full (newest checkpoint: of step 10)",
            id="saves fail",
        ),
        param(
            CUT_OFF,
            "AgentSilent",
            "digits-1 on node worker-2 runs, but sends no heartbeats to replica 0; "
            "the operator replaces no pod: delete the isolated one",
            id="a replica is silent, and the operator may not replace it",
        ),
        param(
            unanswered_for(120),
            "AgentSilent",
            "digits-0 on node worker-1 runs, but its agent does not answer the operator, and no other agent "
            "is known to hear it; the operator replaces no pod: delete this one if it is cut off or stopped",
            id="replica 0 does not answer",
        ),
    ],
)
def test_what_is_wrong_while_a_job_trains_is_named(given: JobBuilder, reason: str, message: str) -> None:
    assert healthy(given) == ("False", reason, message)
    assert new_status(given.snapshot(), None)["message"] == message


def test_job_that_cannot_grow_says_why_and_is_healthy() -> None:
    why = "a job without a checkpoint folder cannot grow: replica 1 must wait"
    held = CALM.answering(waiting=why)
    assert healthy(held) == ("True", "RunningWithFewer", why)
    assert new_status(held.snapshot(), None)["message"] == why
    assert healthy(CALM.stored(new_status(held.snapshot(), None)).answering())[:2] == ("True", "Running")


def test_job_without_a_straggler_is_healthy_again() -> None:
    named = CALM.stored(new_status(SLOW.snapshot(), None))

    assert healthy(named.answering())[:2] == ("True", "Running")


@pytest.mark.parametrize(
    "given",
    [
        param(CUT_OFF.was("Running", lastTransitionTime=at(-110)), id="the pods may have just started"),
        param(CUT_OFF.answering(missing=(SilentReplica(replica=1, seconds=119),)), id="not for long"),
        param(unanswered_for(119), id="replica 0 does not answer, but not for long"),
        param(unanswered_for(500, is_heard=True), id="only the operator does not reach replica 0"),
        param(CUT_OFF.but(pod(1).unschedulable()), id="its pod does not run"),
    ],
)
def test_silence_that_may_pass_is_not_reported(given: JobBuilder) -> None:
    assert healthy(given)[0] == "True"


def test_restarted_operator_does_not_call_a_job_healthy_before_its_agent_answers() -> None:
    named = FULL.stored(new_status(FULL.snapshot(), None))
    unasked = named.seeing(answer=None)
    kept = new_status(unasked.snapshot(), None)

    assert kept == named.status
    assert events(unasked.snapshot(), None, kept) == ()
    assert healthy(unasked.was("Recovering"))[:2] == ("True", "Running"), "its pods run again"


@pytest.mark.parametrize(
    ("given", "later"),
    [
        param(SLOW, CALM.answering(slowest=Straggler(rank=1, replica=1, ratio=2.4)), id="slow"),
        param(HANGS, CALM.answering(hang=Hung(ranks=(1,), message="no step for 43 s")), id="hang"),
        param(FULL, CALM.answering(save_failure="cannot write step 30: disk full"), id="save"),
    ],
)
def test_incident_is_written_and_reported_once(given: JobBuilder, later: JobBuilder) -> None:
    before = new_status(CALM.snapshot(), None)
    starting = given.stored(before)
    named = new_status(starting.snapshot(), None)
    first = events(starting.snapshot(), None, named)
    lasting = later.stored(named)
    again = new_status(lasting.snapshot(), None)

    assert pace.write_at(before, named, now=NOW, last_write=NOW, progress_due=True) == NOW
    assert [event.reason for event in first] == [named["conditions"][1]["reason"]]
    assert again["conditions"] == named["conditions"]
    assert events(lasting.snapshot(), None, again) == ()


def test_another_rank_is_a_new_incident() -> None:
    named = SLOW.stored(new_status(SLOW.snapshot(), None))
    other = named.answering(slowest=Straggler(rank=0, replica=0, ratio=3.0))

    assert [event.reason for event in events(other.snapshot(), None, new_status(other.snapshot(), None))] == [
        "Straggler"
    ]
