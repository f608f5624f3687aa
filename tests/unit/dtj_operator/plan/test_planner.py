"""plan(): which actions, in which order, and what is left alone."""

import tracemalloc
from dataclasses import replace

import pytest

from dtj_operator.model.children import Child
from dtj_operator.plan.actions import (
    Action,
    Create,
    CreatePod,
    Decision,
    DeleteChild,
    DeleteJob,
    DeletePod,
    Fail,
    Restart,
    Resume,
    Succeed,
    Suspend,
)
from dtj_operator.plan.planner import plan, plan_gone
from dtj_operator.plan.snapshot import Gone
from tests.support.builders import NOW, JobBuilder, at, job, pod

param = pytest.param
TWO = job().replicas(2).with_network()


def decided(builder: JobBuilder) -> Decision:
    return plan(builder.snapshot())


def sketch(decision: Decision) -> list[str]:
    """Actions as short strings."""
    words: list[str] = []
    for action in decision.actions:
        match action:
            case CreatePod(body=body):
                words.append(f"+{body['metadata']['name']}@{body['metadata']['labels']['dtj.dev/attempt']}")
            case DeletePod(old, grace_s):
                words.append(f"-{old.name}@{old.attempt}" + ("" if grace_s is None else f" in {grace_s} s"))
            case Create(body):
                words.append(f"+{body['kind']}")
            case DeleteChild(kind):
                words.append(f"-{kind}")
            case _:
                words.append(type(action).__name__)
    return words


def test_a_new_job_gets_its_network_before_its_pods() -> None:
    assert sketch(decided(job().replicas(2))) == [
        "+Service",
        "+NetworkPolicy",
        "+digits-0@0",
        "+digits-1@0",
    ]


def test_bodies_of_pods_are_not_in_memory_all_at_once() -> None:
    """Else some jobs of 10,000 replicas, of which each takes 8 KiB in the cluster, end the operator."""
    env = [{"name": f"VARIABLE_{number}", "value": "1"} for number in range(512)]
    wide = job().replicas(1000).container(env=env).snapshot()
    tracemalloc.start()
    try:
        decision = plan(wide)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(decision.actions) > 1000
    assert taken < 1 << 20


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        param(TWO.running(), [], id="a running job is left alone"),
        param(TWO.was("Starting").having(pod(1)), ["+digits-0@0"], id="only missing pods are created"),
        param(
            TWO.running().seeing(service=Child.ABSENT),
            ["+Service"],
            id="a deleted Service is recreated",
        ),
        param(
            job().wants(network={"policy": "None"}),
            ["+Service", "+digits-0@0"],
            id="no NetworkPolicy if not wanted",
        ),
        param(
            TWO.was("Recovering", attempt=1).having(pod(0).running(), pod(1).crashed()),
            ["-digits-0@0 in 5 s", "-digits-1@0 in 5 s"],
            id="pods of the failed attempt are deleted first, with a short grace period",
        ),
        param(
            TWO.was("Recovering", attempt=1, failure={"reason": "Evicted"}).having(pod(0).running()),
            ["-digits-0@0"],
            id="after an eviction the other pods keep their own grace period",
        ),
        param(
            TWO.was("Recovering", attempt=1).having(pod(0).running().deleting(), pod(1, attempt=1)),
            [],
            id="attempts do not overlap: no pod is created while an old pod exists",
        ),
        param(
            TWO.was("Recovering", attempt=1),
            ["+digits-0@1", "+digits-1@1"],
            id="the next attempt once all old pods are gone",
        ),
        param(
            TWO.was("Recovering", attempt=1, lastTransitionTime=at(0)).recovery(backoffSeconds=10),
            [],
            id="no pod before the back-off is over",
        ),
        param(
            TWO.having(pod(0).running().owned_by("dead job")),
            ["-digits-0@0"],
            id="pods of a deleted job of the same name are deleted first",
        ),
        param(
            TWO.having(pod(0).owned_by("")),
            ["+digits-0@0", "+digits-1@0"],
            id="a pod that no job owns is not touched",
        ),
        param(
            TWO.wants(suspend=True).was("Suspended").having(pod(0).running()),
            ["-digits-0@0"],
            id="suspended: own grace period",
        ),
        param(
            TWO.wants(suspend=True).was("Suspended").having(pod(0).deleting()),
            [],
            id="suspended: pods are deleted once",
        ),
        param(TWO.running().deleted(), ["-digits-0@0", "-digits-1@0"], id="a job that is being deleted"),
        param(TWO.deleted(), [], id="a job that is being deleted gets no new pods"),
        param(
            TWO.was("Succeeded").having(pod(0).running()),
            ["-digits-0@0 in 5 s"],
            id="finished: its pod stays isolated until it has ended",
        ),
    ],
)
def test_actions(given: JobBuilder, expected: list[str]) -> None:
    assert sketch(decided(given)) == expected


@pytest.mark.parametrize(
    "given",
    [
        param(TWO.running().but(pod(0).crashed()), id="a pod that ends"),
        param(TWO.running().wants(activeDeadlineSeconds=1), id="a deadline that is over"),
        param(
            TWO.having(pod(0).running(), pod(1).unschedulable(since=NOW - 999).avoiding()),
            id="a pod that waits because it avoids nodes",
        ),
        param(
            TWO.elastic(1, 4).replicas(4).was("Running", memory={"wantedReplicas": 2}),
            id="a change of size: the next attempt has it",
        ),
    ],
)
def test_nothing_but_the_end_of_a_suspension_is_decided_meanwhile(given: JobBuilder) -> None:
    suspended = given.wants(suspend=True).was("Suspended").snapshot()
    assert plan(suspended).verdict is None
    assert isinstance(plan(given.was("Suspended").snapshot()).verdict, Resume)


def test_job_that_is_done_as_it_is_suspended_has_succeeded() -> None:
    """Else it would train its last steps again after the suspension."""
    done = TWO.running().having(pod(0).succeeded(), pod(1).succeeded().deleting())
    assert isinstance(plan(done.wants(suspend=True).was("Suspended").snapshot()).verdict, Succeed)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        param(TWO.running().but(pod(0).crashed(), pod(1).succeeded()), Restart, id="a crash"),
        param(
            TWO.running().wants(suspend=True).but(pod(0).crashed()),
            Suspend,
            id="suspension comes before restarts",
        ),
        param(
            TWO.running().wants(activeDeadlineSeconds=1).but(pod(0).crashed()),
            Fail,
            id="the deadline comes before restarts",
        ),
        param(TWO.wants(replicas=0), Fail, id="an invalid spec, before the first attempt"),
    ],
)
def test_verdict_comes_without_actions_and_is_written_first(given: JobBuilder, verdict: type) -> None:
    decision = decided(given)

    assert isinstance(decision.verdict, verdict)
    assert decision.actions == ()


@pytest.mark.parametrize(
    "given",
    [
        param(TWO.running().but(pod(0).crashed()), id="a pod fails"),
        param(TWO.running().without(1), id="a pod is gone"),
        param(TWO.running().wants(activeDeadlineSeconds=1), id="the deadline has passed"),
        param(TWO.having(pod(0).running(), pod(1).running()), id="its status was lost"),
        param(TWO.was("Succeeded").having(pod(0).running()), id="a pod of a finished job still runs"),
    ],
)
def test_job_whose_spec_this_version_cannot_read_is_left_alone_once_it_has_begun(given: JobBuilder) -> None:
    assert decided(given.wants(cleanPodPolicy="Failed")) == Decision()


def test_job_whose_spec_this_version_cannot_read_can_be_deleted() -> None:
    assert sketch(decided(TWO.running().wants(cleanPodPolicy="Failed").deleted())) == [
        "-digits-0@0",
        "-digits-1@0",
    ]


def test_success_comes_before_the_deadline() -> None:
    late = TWO.running().wants(activeDeadlineSeconds=1).but(pod(0).succeeded(), pod(1).succeeded())

    assert type(decided(late).verdict).__name__ == "Succeed"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished_job_stays_finished_whatever_happens_to_children_or_spec(phase: str) -> None:
    over = TWO.was(phase).having(pod(0).crashed(), pod(1).succeeded()).wants(suspend=True, replicas=2)
    decision = decided(over.seeing(service=Child.ABSENT, network_policy=Child.ABSENT))

    assert (decision.verdict, decision.actions) == (None, ())


def test_foreign_service_is_reported_and_nothing_is_created() -> None:
    decision = decided(job().was("Pending").seeing(service=Child.FOREIGN, network_policy=Child.ABSENT))

    assert decision.actions == ()
    assert decision.refusal is not None
    assert decision.refusal.reason == "NameConflict"
    assert decision.refusal.message.startswith(
        "Service digits exists and does not belong to this job; delete it"
    )
    assert decision.requeue_at == NOW + 30


@pytest.mark.parametrize(
    ("given", "moment"),
    [
        param(TWO.running(), None, id="nothing to wait for"),
        param(TWO.running().wants(activeDeadlineSeconds=100), NOW + 40, id="the deadline"),
        param(
            TWO.was("Succeeded", completionTime=at(-10)).wants(ttlSecondsAfterFinished=30),
            NOW + 20,
            id="the TTL",
        ),
        param(TWO.running().but(pod(0).crashed(76)), NOW + 5, id="a lost peer's cause"),
        param(
            TWO.was("Starting").having(pod(0).unprepared(placed=NOW - 20), pod(1).unprepared(placed=NOW)),
            NOW + 15,
            id="a pod that waits for its volumes, when that is noted",
        ),
        param(
            TWO.was("Starting").having(
                pod(0).unprepared(placed=NOW - 20), pod(1).unprepared(placed=NOW - 16)
            ),
            NOW + 100,
            id="the same, when that counts as slow",
        ),
        param(
            TWO.was("Recovering", lastTransitionTime=at(0))
            .recovery(backoffSeconds=100)
            .wants(activeDeadlineSeconds=70),
            NOW + 10,
            id="the deadline, when it comes before the end of the back-off",
        ),
    ],
)
def test_requeue_at(given: JobBuilder, moment: float | None) -> None:
    assert decided(given).requeue_at == moment


@pytest.mark.parametrize(
    ("ttl_s", "actions"),
    [
        param(30, (DeleteJob(),), id="over"),
        param(31, (), id="not yet"),
        param("soon", (), id="not a number"),
    ],
)
def test_ttl_of_a_job_with_an_invalid_spec_counts(ttl_s: int | str, actions: tuple[Action, ...]) -> None:
    """Its pods stay until then: how they are to be cleaned up may be what the operator cannot read."""
    wrong = TWO.wants(ttlSecondsAfterFinished=ttl_s, cleanPodPolicy="Failed").having(pod(0).running())
    assert decided(wrong.was("Failed", completionTime=at(-30))).actions == actions


def test_expired_ttl_deletes_the_job_and_leaves_the_children_to_garbage_collection() -> None:
    over = TWO.was("Succeeded", completionTime=at(-30)).wants(ttlSecondsAfterFinished=30)

    assert decided(over).actions == (DeleteJob(),)


def test_children_of_a_deleted_job_are_deleted_unless_orphaned() -> None:
    kept, leaving, free = pod(0).running(), pod(1).deleting(), pod(2).owned_by("")
    gone = Gone(
        pods=(kept.pod, leaving.pod, free.pod),
        children={"Service": "s", "NetworkPolicy": "n"},
        now=NOW,
        monotonic=NOW,
    )
    without_pods = replace(gone, pods=(free.pod,))

    assert plan_gone(gone).actions == (DeletePod(kept.pod, None, unchanged=True),)
    assert plan_gone(replace(gone, pods=(leaving.pod,))).actions == (), "its pod is still terminating"
    assert plan_gone(without_pods).actions == (DeleteChild("Service", "s"), DeleteChild("NetworkPolicy", "n"))


def test_network_objects_are_created_once() -> None:
    assert not any(isinstance(action, Create | DeleteChild) for action in decided(TWO).actions)
