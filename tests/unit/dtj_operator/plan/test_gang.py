"""Which PodGroup new pods join, and which PodGroups go."""

from typing import Any

import pytest

from dtj_operator.model.memory import REPLICA
from dtj_operator.model.views import PodGroupView
from dtj_operator.plan.actions import Create, CreatePod, Delete, Ungroup
from dtj_operator.plan.planner import plan
from dtj_operator.plan.policies.ungroup import ungroup
from dtj_operator.plan.report import pace
from dtj_operator.plan.report.conditions import obstacle
from dtj_operator.plan.report.status import new_status
from tests.support.builders import NOW, JobBuilder, PodBuilder, at, job, pod, pod_group

param = pytest.param
PREEMPTED = "default-scheduler: preempting to accommodate a higher priority podgroup"
Json = dict[str, Any]
PAIR = job().replicas(2).with_network().placed_as_gang()
THREE = job().replicas(3).with_network().recovery(scope=REPLICA).was("Running", memory={"rejoins": True})


def joined(builder: JobBuilder) -> dict[str, str | None]:
    """Which PodGroup each new pod joins."""
    bodies = [action.body for action in plan(builder.snapshot()).actions if isinstance(action, CreatePod)]
    return {
        body["metadata"]["name"]: body["spec"].get("schedulingGroup", {}).get("podGroupName")
        for body in bodies
    }


def created(builder: JobBuilder) -> list[Json]:
    return [action.body for action in plan(builder.snapshot()).actions if isinstance(action, Create)]


def deleted(builder: JobBuilder) -> list[str]:
    return [a.view.name for a in plan(builder.snapshot()).actions if isinstance(a, Delete)]


@pytest.mark.parametrize(
    ("given", "group"),
    [
        param(PAIR, "digits-0", id="all pods of an attempt"),
        param(PAIR.was("Pending", attempt=3), "digits-3", id="of a later attempt"),
        param(PAIR.seeing(gang_api=""), None, id="the cluster has no PodGroups"),
        param(PAIR.wants(scheduling={"gang": "None"}), None, id="switched off"),
        param(PAIR.replicas(1), None, id="one replica"),
        param(PAIR.pod_spec(schedulerName="volcano"), None, id="another scheduler"),
        param(
            PAIR.pod_spec(schedulerName="default-scheduler"), "digits-0", id="the default scheduler by name"
        ),
        param(PAIR.placed_as_gang(pod_group(deleting=True)), None, id="a user deleted the group"),
    ],
)
def test_group_that_new_pods_join(given: JobBuilder, group: str | None) -> None:
    assert set(joined(given).values()) == {group}


def test_group_of_the_template_is_kept() -> None:
    theirs = PAIR.pod_spec(schedulingGroup={"podGroupName": "mine"})
    assert set(joined(theirs).values()) == {"mine"}
    assert not created(theirs)


def test_group_is_created_once_with_the_fewest_pods_that_can_train() -> None:
    (whole,) = created(PAIR)
    assert whole["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    (elastic,) = created(PAIR.replicas(5).elastic(3, 8))
    assert elastic["spec"]["schedulingPolicy"]["gang"]["minCount"] == 3
    assert not created(PAIR.placed_as_gang(pod_group()))


def test_group_has_the_priority_of_its_pods() -> None:
    (group,) = created(PAIR.pod_spec(priorityClassName="high"))
    assert group["spec"]["priorityClassName"] == "high"


def test_group_that_is_gone_is_created_again_for_the_pods_that_name_it() -> None:
    members = (pod(0).in_group("digits-0"), pod(1).in_group("digits-0"))
    waiting = PAIR.was("Pending").having(*members)
    assert [group["metadata"]["name"] for group in created(waiting)] == ["digits-0"]
    assert not created(waiting.placed_as_gang(pod_group(deleting=True)))
    assert not created(PAIR.was("Pending").having(pod(0), pod(1)))


def test_group_is_preempted_as_a_whole_unless_fewer_pods_can_train() -> None:
    (whole,) = created(PAIR)
    assert whole["spec"]["disruptionMode"] == {"all": {}}
    (elastic,) = created(PAIR.replicas(5).elastic(3, 8))
    assert "disruptionMode" not in elastic["spec"]
    (older,) = created(PAIR.seeing(gang_api="scheduling.k8s.io/v1alpha2"))
    assert older["spec"]["disruptionMode"] == "PodGroup"


@pytest.mark.parametrize(
    ("mode", "constraints"),
    [("Required", {"topology": [{"key": "rack"}]}), ("Preferred", None)],
)
def test_group_has_the_domain_that_the_job_requires(mode: str, constraints: Json | None) -> None:
    (group,) = created(PAIR.wants(scheduling={"topology": {"key": "rack", "mode": mode}}))
    assert group["spec"].get("schedulingConstraints") == constraints


def test_group_that_nothing_releases_delays_no_attempt() -> None:
    """Without a controller manager a deleted PodGroup keeps its finalizer, so it exists forever."""
    left = PAIR.was("Pending", attempt=1).placed_as_gang(pod_group(0, deleting=True))
    assert set(joined(left).values()) == {"digits-1"}
    assert [group["metadata"]["name"] for group in created(left)] == ["digits-1"]
    assert not deleted(left)
    over = PAIR.was("Succeeded", attempt=1).placed_as_gang(pod_group(0, deleting=True), pod_group(1))
    assert deleted(over) == ["digits-1"]


EARLIER = pod_group(deleting=True, owner_uid="earlier")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        param(PAIR.placed_as_gang(EARLIER), True, id="nothing releases it"),
        param(
            PAIR.having(pod(0).owned_by("earlier").deleting()).placed_as_gang(EARLIER),
            False,
            id="its pods end",
        ),
        param(PAIR.placed_as_gang(pod_group(owner_uid="earlier")), False, id="it is about to be deleted"),
        param(PAIR.wants(scheduling={"gang": "None"}).placed_as_gang(EARLIER), False, id="it is not needed"),
        param(PAIR.was("Pending", attempt=1).placed_as_gang(EARLIER), False, id="the name is another"),
    ],
)
def test_condition_tells_that_the_group_of_a_deleted_job_is_in_the_way(given: JobBuilder, told: bool) -> None:
    found = obstacle(given.snapshot(), None, "Pending")
    assert (found is not None) is told
    if found is not None:
        assert found.reason == "GangsOff"
        assert "PodGroup digits-0 of a deleted job" in found.message
        assert "GenericWorkload of kube-controller-manager" in found.message


@pytest.mark.parametrize(
    ("others", "group"),
    [
        param(
            [pod(1).running().in_group("digits-0"), pod(2).running().in_group("digits-0")],
            "digits-0",
            id="run",
        ),
        param(
            [pod(1).succeeded().in_group("digits-0"), pod(2).running().in_group("digits-0")],
            None,
            id="one has finished: the scheduler does not count it",
        ),
        param(
            [pod(1).running(), pod(2).running()],
            None,
            id="they were created before the cluster had PodGroups",
        ),
    ],
)
def test_replaced_pod_joins_only_if_the_group_can_be_complete(others: list[Any], group: str | None) -> None:
    given = THREE.having(*others).placed_as_gang(pod_group(min_count=3))
    given = given.was("Running", memory={"rejoins": True, "replacing": {"0": ""}})
    assert joined(given) == {"digits-0": group}


@pytest.mark.parametrize(
    ("fewest", "group"),
    [
        param(3, {}, id="all pods are needed: the new one waits"),
        param(1, {"digits-0": "digits-0"}, id="one pod can train"),
    ],
)
def test_new_pod_is_not_placed_beside_pods_of_its_gang_that_terminate(
    fewest: int, group: dict[str, str]
) -> None:
    """A whole gang is preempted, and its first pod is gone before the others."""
    leaving, stays = (pod(i).running().in_group("digits-0") for i in (1, 2))
    given = THREE.having(leaving.deleting(), stays).placed_as_gang(pod_group(min_count=fewest))
    given = given.was("Running", memory={"rejoins": True, "replacing": {"0": "", "1": leaving.pod.uid}})
    assert joined(given) == group


@pytest.mark.parametrize(
    ("ago_s", "said", "waits_s"),
    [
        param(2, PREEMPTED, 8, id="the scheduler may be about to delete the others"),
        param(11, PREEMPTED, None, id="it took one pod only"),
        param(-30, PREEMPTED, None, id="the clock was set back"),
        param(2, "by its node", None, id="the pod was lost for another reason"),
    ],
)
def test_new_pods_wait_while_the_scheduler_preempts_the_gang(
    ago_s: int, said: str, waits_s: int | None
) -> None:
    """It deletes the last pod after all others; a new pod beside that one would hold a node."""
    failure = {"reason": "Evicted", "replica": 0, "message": said, "at": at(-ago_s)}
    memory = {"rejoins": True, "replacing": {"0": "", "1": ""}}
    stays = pod(2).running().in_group("digits-0")
    given = THREE.having(stays).placed_as_gang(pod_group(min_count=3))
    decision = plan(given.was("Recovering", failure=failure, memory=memory).snapshot())
    created = [action for action in decision.actions if isinstance(action, CreatePod)]
    assert len(created) == (2 if waits_s is None else 0)
    assert decision.requeue_at == (None if waits_s is None else NOW + waits_s)
    whole = given.having().was("Recovering", failure=failure, memory={**memory, "replacing": {}})
    assert len(joined(whole)) == 3, "no pod of it is left"


def test_groups_of_earlier_attempts_are_deleted_and_those_of_others_kept() -> None:
    theirs = pod_group(1, owner_uid="another")
    running = PAIR.was("Running", attempt=2).having(*(pod(i, attempt=2).running() for i in range(2)))
    groups = (pod_group(0), theirs, pod_group(2))
    assert deleted(running.placed_as_gang(*groups)) == ["digits-0"]
    assert deleted(running.was("Succeeded", attempt=2).placed_as_gang(*groups)) == ["digits-0", "digits-2"]
    assert deleted(running.wants(suspend=True).was("Suspended", attempt=3).placed_as_gang(*groups)) == [
        "digits-0",
        "digits-2",
    ]


def test_condition_tells_what_the_gang_waits_for() -> None:
    said = "0/1 placements are available"
    waiting = PAIR.was("Pending").having(pod(0).in_group("digits-0"), pod(1).in_group("digits-0"))
    waiting = waiting.placed_as_gang(pod_group(waits_for=said))
    found = obstacle(waiting.snapshot(), None, "Pending")
    assert found is not None
    assert (found.reason, said in found.message) == ("Unschedulable", True)
    assert "PodGroup digits-0 needs capacity for 2 pods at once" in found.message
    more = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
    told = obstacle(waiting.but(pod(1).unschedulable(more)).snapshot(), None, "Pending")
    assert told is not None
    assert f"{said}; pod digits-1: {more}; add or free" in told.message
    placed = PAIR.was("Running").having(pod(0).running().on("a"), pod(1).running().on("b"))
    assert obstacle(placed.placed_as_gang(pod_group(waits_for=said)).snapshot(), None, "Pending") is None


@pytest.mark.parametrize(
    ("group", "second", "reason"),
    [
        param(pod_group(), pod(1).unschedulable("0/1 nodes"), "GangsOff", id="a part of the gang is placed"),
        param(pod_group(), pod(1), None, id="the others may be bound in a moment"),
        param(
            pod_group(decided=True), pod(1).unschedulable("0/1 nodes"), "Unschedulable", id="one was replaced"
        ),
        param(
            pod_group(min_count=1),
            pod(1).unschedulable("0/1 nodes"),
            "Unschedulable",
            id="an elastic job has enough pods",
        ),
    ],
)
def test_condition_tells_that_the_scheduler_ignores_groups(
    group: PodGroupView, second: PodBuilder, reason: str | None
) -> None:
    given = PAIR.was("Pending").having(pod(0).on("a").in_group("digits-0"), second.in_group("digits-0"))
    found = obstacle(given.placed_as_gang(group).snapshot(), None, "Pending")
    assert (None if found is None else found.reason) == reason


FOUR = job().replicas(4).with_network().was("Pending")


def waiting(index: int) -> PodBuilder:
    return pod(index).unschedulable().in_group("digits-0")


def half(given: JobBuilder = FOUR, *, min_count: int = 4) -> JobBuilder:
    """Pod 1 is not in the group."""
    pods = (waiting(0), pod(1).running().on("n1"), waiting(2), waiting(3))
    group = pod_group(0, min_count, decided=True, waits_for="minCount is not reached")
    return given.having(*pods).placed_as_gang(group)


@pytest.mark.parametrize(
    ("given", "recreated"),
    [
        param(half(), [0, 2, 3], id="one pod is not in the group"),
        param(half().seeing(gang_api="", gangs_off="off"), [0, 2, 3], id="and the groups are off"),
        param(half().without(1), [], id="the missing pod will join"),
        param(
            half().without(1).seeing(gang_api="", gangs_off="off"), [0, 2, 3], id="but will not with them off"
        ),
        param(half(FOUR.elastic(3, 4), min_count=3), [], id="the others are enough"),
        param(half().placed_as_gang(), [], id="the group is not known yet"),
        param(half().but(pod(3).running().on("n3").in_group("digits-0")), [0, 2], id="those without a node"),
        param(half().but(waiting(1)).but(waiting(3).deleting()), [], id="one is being deleted"),
    ],
)
def test_pods_of_a_group_that_cannot_be_complete_are_recreated(
    given: JobBuilder, recreated: list[int]
) -> None:
    verdict = ungroup(given.snapshot())
    assert [index for index, _ in verdict.replaces] == recreated if verdict else not recreated


def test_recreated_pods_are_placed_one_by_one_and_the_group_is_not_waited_for() -> None:
    off = half().seeing(gangs_off="pods lose their schedulingGroup", gang_api="")
    verdict = plan(off.snapshot()).verdict
    assert isinstance(verdict, Ungroup)

    stored = new_status(off.snapshot(), verdict)
    before = new_status(off.snapshot(), None)
    assert pace.write_at(before, stored, now=NOW, last_write=NOW, progress_due=False) == NOW, "at once"
    replaced = off.stored(stored).without(0, 2, 3)
    assert joined(replaced) == {"digits-0": None, "digits-2": None, "digits-3": None}
    alone = replaced.but(pod(0).with_uid("b").unschedulable())
    found = obstacle(alone.snapshot(), None, "Pending")
    assert found is not None
    assert found.message.startswith("pod digits-0 is unschedulable: no capacity")


def test_no_more_pods_are_recreated_at_once_than_the_status_lists() -> None:
    many = job().replicas(150).was("Pending").having(*map(waiting, range(149)), pod(149).running().on("n"))
    verdict = ungroup(many.placed_as_gang(pod_group(0, 150)).snapshot())
    assert verdict is not None
    assert len(verdict.replaces) == 100
