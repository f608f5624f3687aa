"""When a job with a queue runs, and what Kueue learns about it."""

from typing import Any

import msgspec
import pytest

from dtj_operator.model.json import Json
from dtj_operator.model.views import AdmissionView, ConditionView, PodSettings, PodSetView, WorkloadView
from dtj_operator.plan.actions import (
    Action,
    AdoptWorkload,
    Create,
    CreatePod,
    Delete,
    DeletePod,
    Resize,
    Resume,
    Suspend,
    UpdateWorkload,
)
from dtj_operator.plan.children.workload import status_change
from dtj_operator.plan.planner import plan
from dtj_operator.plan.report.status import events, new_status
from tests.support.builders import NOW, UID, JobBuilder, at, job, pod

param = pytest.param
KUEUE = "kueue.x-k8s.io"
TWO = job().replicas(2).with_network()
HELD = TWO.was("Suspended")
ELASTIC = job().replicas(4).elastic(2, 8).with_network()
ADMITTED = TWO.workload("QuotaReserved", "Admitted")
SPOT = AdmissionView(cluster_queue="all", pod_set="main", flavors=("spot",))
EVICTED = TWO.workload("QuotaReserved", "Admitted", "Evicted")


def actions(given: JobBuilder, *kinds: type[Action]) -> list[Any]:
    return [each for each in plan(given.snapshot()).actions if isinstance(each, kinds)]


def told(given: JobBuilder) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition that the Workload gets."""
    return {
        c["type"]: (c["status"], c["reason"])
        for update in actions(given, UpdateWorkload)
        for c in update.conditions
    }


def pods(given: JobBuilder) -> list[Json]:
    return [action.body for action in actions(given, CreatePod)]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        param(TWO.in_queue(), "Queued", id="new"),
        param(TWO.in_queue(TWO.workload()), "Queued", id="not admitted"),
        param(TWO.in_queue(TWO.workload("QuotaReserved")), "Queued", id="checks are not ready"),
        param(TWO.running().in_queue(TWO.workload()), "Queued", id="runs without an admission"),
        param(TWO.running().in_queue(), "Queued", id="its Workload was deleted"),
        param(TWO.running().in_queue(EVICTED), "Evicted", id="evicted"),
        param(TWO.running().in_queue(TWO.workload(active=False)), "Deactivated", id="deactivated"),
        param(TWO.running().in_queue(job().replicas(3).workload("Admitted")), "Queued", id="asks for more"),
        param(
            TWO.running().in_queue(msgspec.structs.replace(ADMITTED, owner_uid="b")), "Queued", id="foreign"
        ),
        param(TWO.in_queue(problem="no Kueue"), "QueueUnavailable", id="no Kueue"),
    ],
)
def test_job_is_held(given: JobBuilder, reason: str) -> None:
    verdict = plan(given.snapshot()).verdict
    assert isinstance(verdict, Suspend)
    assert verdict.reason == reason
    status = new_status(given.snapshot(), verdict)
    assert (status["phase"], status["message"]) == ("Suspended", verdict.message)
    held = next(c for c in status["conditions"] if c["type"] == "Suspended")
    assert (held["status"], held["reason"]) == ("True", reason)
    assert status["restarts"]["total"] == 0


@pytest.mark.parametrize(
    "given",
    [
        param(TWO.running().in_queue(ADMITTED), id="admitted"),
        param(TWO.running().in_queue(problem="the API server has no Workloads"), id="Kueue cannot be asked"),
        param(TWO.running(), id="no queue"),
    ],
)
def test_running_job_continues(given: JobBuilder) -> None:
    assert plan(given.snapshot()).verdict is None
    assert not actions(given, DeletePod)


def test_admitted_job_starts() -> None:
    admitted = HELD.in_queue(ADMITTED)
    verdict = plan(admitted.snapshot()).verdict
    assert verdict == Resume("queue gpus admitted the job")
    assert new_status(admitted.snapshot(), verdict)["phase"] == "Pending"


def test_suspended_by_its_user_it_waits_even_if_admitted_and_gives_the_quota_back() -> None:
    theirs = HELD.wants(suspend=True).in_queue(ADMITTED)
    assert plan(theirs.snapshot()).verdict is None
    assert actions(theirs, Delete) == [Delete(ADMITTED)]
    ending = theirs.having(pod(0).deleting())
    assert not actions(ending, Delete)


def test_condition_repeats_what_kueue_says() -> None:
    waiting = ConditionView(type="QuotaReserved", status="False", message="insufficient quota for cpu")
    given = HELD.in_queue(TWO.workload(conditions=(waiting,)))
    status = new_status(given.snapshot(), plan(given.snapshot()).verdict)
    assert status["message"] == "the job waits in queue gpus: insufficient quota for cpu"
    ready = next(c for c in status["conditions"] if c["type"] == "PodsReady")
    assert (ready["reason"], ready["message"]) == ("Queued", status["message"])


def test_condition_names_the_admission_checks_that_a_job_with_quota_waits_for() -> None:
    reserved = ConditionView(type="QuotaReserved", status="True", message="Quota reserved")
    checks = (("nodes", "no node before 9:00"), ("budget", ""))
    given = HELD.in_queue(TWO.workload(conditions=(reserved,), unchecked=checks))
    assert new_status(given.snapshot(), None)["message"] == (
        "the job waits in queue gpus: Quota reserved; admission check nodes is not ready: "
        "no node before 9:00; admission check budget is not ready"
    )


QUOTA_TOO_SMALL = "insufficient quota for cpu in flavor a, request > maximum capacity (2 > 1)"
NO_LEVEL = 'Flavor "a" does not contain the requested level'
IN_USE = "insufficient unused quota for cpu in flavor b, 1 more needed"


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        param("Inadmissible", "LocalQueue gpus doesn't exist", "Inadmissible", id="no queue"),
        param("Misconfigured", "LocalQueue gpus doesn't exist", "Inadmissible", id="no queue, Kueue 0.20"),
        param("Suspended", "ClusterQueue all is inactive", "Inadmissible", id="an inactive one"),
        param("Pending", QUOTA_TOO_SMALL, "Inadmissible", id="more than the whole quota"),
        param("ExceedsMaxQuota", "2 > 1", "Inadmissible", id="more than the whole quota, Kueue 0.20"),
        param("Pending", NO_LEVEL, "Inadmissible", id="no such level of the topology"),
        param("Pending", IN_USE, "Queued", id="others use the quota"),
        param("Pending", f"{NO_LEVEL}, {IN_USE}", "Queued", id="others use the quota of another flavor"),
    ],
)
def test_job_that_its_queue_can_never_admit_says_so_once(reason: str, message: str, expected: str) -> None:
    said = ConditionView(type="QuotaReserved", status="False", reason=reason, message=message)
    given = HELD.in_queue(TWO.workload(conditions=(said,)))
    status = new_status(given.snapshot(), None)
    held = {each["type"]: each["reason"] for each in status["conditions"]}
    assert (held["Suspended"], held["PodsReady"]) == (expected, expected)
    assert message in status["message"]
    recorded = [(each.type, each.reason) for each in events(given.snapshot(), None, status)]
    assert recorded == ([("Warning", "Inadmissible")] if expected == "Inadmissible" else [])
    later = given.stored(status).snapshot()
    assert not events(later, None, new_status(later, None))


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (NO_LEVEL, "podset-required-topology of spec.template must name a level of its topology, not rack"),
        ("ClusterQueue all is inactive", "`kubectl describe clusterqueue` says what it lacks"),
        (QUOTA_TOO_SMALL, "correct the queue or its quota"),
    ],
)
def test_job_that_its_queue_can_never_admit_says_what_helps(message: str, fix: str) -> None:
    asked = {"metadata": {"annotations": {f"{KUEUE}/podset-required-topology": "rack"}}}
    given = HELD.wants(template={**TWO.spec["template"], **asked})
    said = ConditionView(type="QuotaReserved", status="False", reason="Inadmissible", message=message)
    status = new_status(given.in_queue(given.workload(conditions=(said,))).snapshot(), None)
    assert fix in status["message"]


def test_event_warns_that_there_is_no_queue() -> None:
    given = TWO.in_queue(problem="the cluster has no Workloads")
    verdict = plan(given.snapshot()).verdict
    (event,) = events(given.snapshot(), verdict, new_status(given.snapshot(), verdict))
    assert (event.type, event.note) == ("Warning", "the cluster has no Workloads")


def test_event_tells_why_the_pods_stop() -> None:
    given = TWO.running().in_queue(EVICTED)
    verdict = plan(given.snapshot()).verdict
    (event,) = events(given.snapshot(), verdict, new_status(given.snapshot(), verdict))
    assert (event.type, event.reason, event.note) == (
        "Normal",
        "Evicted",
        "Stopping all pods: queue gpus took back its quota: said Evicted",
    )


def test_workload_asks_for_what_the_spec_says() -> None:
    (created,) = actions(HELD.in_queue(), Create)
    spec = created.body["spec"]
    assert spec["queueName"] == "gpus"
    (pod_set,) = spec["podSets"]
    assert (pod_set["count"], "minCount" in pod_set) == (2, False)
    assert pod_set["template"]["spec"]["containers"] == TWO.spec["template"]["spec"]["containers"]
    (elastic,) = actions(ELASTIC.was("Suspended").in_queue(), Create)
    assert (elastic.body["spec"]["podSets"][0]["minCount"]) == 2


def test_workload_has_the_priority_and_the_time_limit_of_the_labels() -> None:
    given = HELD.labelled(priority_class="high", max_exec_time_seconds="60")
    (created,) = actions(given.in_queue(priority=7), Create)
    spec = created.body["spec"]
    assert spec["priorityClassRef"]["kind"] == "WorkloadPriorityClass"
    assert (spec["priorityClassRef"]["name"], spec["priority"]) == ("high", 7)
    assert spec["maximumExecutionTimeSeconds"] == 60


def test_class_that_does_not_exist_is_reported() -> None:
    given = HELD.labelled(priority_class="high").in_queue(absent="WorkloadPriorityClass high is not there")
    decision = plan(given.snapshot())
    assert not actions(given, Create)
    assert decision.refusal is not None
    assert decision.refusal.message == "WorkloadPriorityClass high is not there"
    assert decision.requeue_at is not None


def test_spec_that_changed_is_queued_again() -> None:
    old = job().replicas(3).workload("Admitted")
    given = HELD.in_queue(old)
    assert actions(given, Delete) == [Delete(old)]
    (created,) = actions(given, Create)
    assert created.body["metadata"]["name"] != old.name


def test_quota_is_given_back_once_no_pod_is_left() -> None:
    assert not told(HELD.in_queue(EVICTED).having(pod(0).deleting()))
    (update,) = actions(HELD.in_queue(EVICTED), UpdateWorkload)
    assert update.releases
    assert told(HELD.in_queue(EVICTED))["QuotaReserved"] == ("False", "Pending")
    assert told(HELD.in_queue(EVICTED))["Requeued"] == ("False", "EvictedReason")


def test_preempted_job_is_requeued_at_once() -> None:
    preempted = ConditionView(type="Evicted", status="True", reason="Preempted", message="for another")
    known = msgspec.structs.replace(ADMITTED, conditions=(*ADMITTED.conditions, preempted))
    assert told(HELD.in_queue(known))["Requeued"] == ("True", "Preempted")


def test_deactivated_job_can_be_queued_again_whatever_the_cause() -> None:
    cause = "DeactivatedDueToRequeuingLimitExceeded"
    evicted = ConditionView(type="Evicted", status="True", reason=cause, message="too often")
    known = msgspec.structs.replace(ADMITTED, conditions=(*ADMITTED.conditions, evicted))
    assert told(HELD.in_queue(known))["Requeued"] == ("False", "Deactivated")


def with_condition(kind: str, status: str, reason: str) -> WorkloadView:
    more = ConditionView(type=kind, status=status, reason=reason)
    return msgspec.structs.replace(ADMITTED, conditions=(*ADMITTED.conditions, more))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        param(
            TWO.was("Starting").having(pod(0), pod(1)).in_queue(ADMITTED),
            ("False", "WaitForStart"),
            id="start",
        ),
        param(TWO.running().in_queue(ADMITTED), ("True", "Started"), id="run"),
        param(TWO.running().in_queue(with_condition("PodsReady", "True", "Started")), None, id="known"),
        param(
            TWO.running().but(pod(0)).in_queue(with_condition("PodsReady", "True", "Started")),
            ("False", "WaitForRecovery"),
            id="one is replaced",
        ),
        param(
            TWO.running().in_queue(with_condition("PodsReady", "False", "WaitForRecovery")),
            ("True", "Recovered"),
            id="recovered",
        ),
    ],
)
def test_kueue_knows_whether_pods_are_ready(given: JobBuilder, expected: tuple[str, str] | None) -> None:
    assert told(given).get("PodsReady") == expected


def test_kueue_knows_that_the_job_is_over() -> None:
    over = TWO.was("Succeeded").having(pod(0).succeeded(), pod(1).succeeded())
    assert told(over.in_queue(ADMITTED)) == {"Finished": ("True", "Succeeded")}
    failed = TWO.was("Failed").having(pod(0).crashed(), pod(1).running())
    assert not told(failed.in_queue(ADMITTED)), "a pod still runs"
    assert told(failed.but(pod(1).crashed()).in_queue(ADMITTED)) == {"Finished": ("True", "Failed")}
    assert not told(over.in_queue(TWO.workload("Admitted", "Finished")))
    left = over.seeing(queue=over.in_queue(ADMITTED).known["queue"])
    assert actions(left, Delete) == [Delete(ADMITTED)], "the label was removed"


def test_pods_get_what_the_admission_says() -> None:
    admission = AdmissionView(cluster_queue="all", pod_set="main", flavors=("spot",))
    update = PodSettings(annotations={"note": "a"}, tolerations=[{"key": "spot", "operator": "Exists"}])
    known = msgspec.structs.replace(ADMITTED, admission=admission, updates=(update,))
    flavor = PodSettings(node_selector={"kind": "spot"}, tolerations=[{"key": "spot", "operator": "Exists"}])
    given = TWO.pod_spec(nodeSelector={"zone": "a"}).was("Pending")
    known = msgspec.structs.replace(known, name=given.workload().name)
    (first, _) = pods(given.in_queue(known, flavors={"spot": flavor}))
    assert first["spec"]["nodeSelector"] == {"zone": "a", "kind": "spot"}
    assert first["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert first["metadata"]["annotations"] == {"kueue.x-k8s.io/workload": known.name, "note": "a"}
    assert first["metadata"]["labels"]["kueue.x-k8s.io/cluster-queue-name"] == "all"
    assert "schedulingGates" not in first["spec"]
    assert not pods(given.in_queue(known, absent="ResourceFlavor spot is not there"))


def test_pods_wait_for_their_nodes_if_kueue_chooses_them() -> None:
    admission = AdmissionView(cluster_queue="all", pod_set="main", chooses_nodes=True)
    (first, _) = pods(TWO.was("Pending").in_queue(msgspec.structs.replace(ADMITTED, admission=admission)))
    assert first["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]


@pytest.mark.parametrize(
    ("annotation", "request_", "added"),
    [
        param({}, {}, True, id="none"),
        param({f"{KUEUE}/podset-required-topology": "rack"}, {"required": "rack"}, False, id="one rack"),
        param(
            {f"{KUEUE}/podset-preferred-topology": "rack"},
            {"preferred": "rack"},
            False,
            id="a rack, if possible",
        ),
        param(
            {f"{KUEUE}/podset-unconstrained-topology": "true"}, {"unconstrained": True}, True, id="anywhere"
        ),
    ],
)
def test_annotation_of_the_template_says_where_kueue_places_the_pods(
    annotation: Json, request_: Json, added: bool
) -> None:
    given = TWO.wants(template={**TWO.spec["template"], "metadata": {"annotations": annotation}})
    (created,) = actions(given.was("Suspended").in_queue(), Create)
    asked = created.body["spec"]["podSets"][0]["topologyRequest"]
    assert asked == {"podIndexLabel": "dtj.dev/replica-index", **request_}
    admission = AdmissionView(cluster_queue="all", pod_set="main", chooses_nodes=True)
    known = msgspec.structs.replace(given.workload("Admitted"), admission=admission)
    (first, _) = pods(given.was("Pending").in_queue(known))
    assert (f"{KUEUE}/podset-unconstrained-topology" in first["metadata"]["annotations"]) == added


@pytest.mark.parametrize("count", [2, 3])
def test_elastic_job_starts_with_the_admitted_replicas(count: int) -> None:
    known = ELASTIC.workload("QuotaReserved", "Admitted")
    fewer = msgspec.structs.replace(
        known, admission=AdmissionView(cluster_queue="all", pod_set="main", count=count)
    )
    given = ELASTIC.was("Suspended", memory={"wantedReplicas": 4}).in_queue(fewer)
    verdict = plan(given.snapshot()).verdict
    assert isinstance(verdict, Resume)
    status = new_status(given.snapshot(), verdict)
    assert len(pods(given.stored(status))) == count
    assert not plan(given.stored(status).snapshot()).verdict


NO_ANSWER = "the operator cannot read Workloads"


@pytest.mark.parametrize("scope", ["Job", "Replica"])
@pytest.mark.parametrize(
    "replicas", [param(4, id="it got quota for fewer"), param(2, id="it was scaled down since")]
)
def test_elastic_job_keeps_its_size_while_kueue_cannot_be_asked(scope: str, replicas: int) -> None:
    memory = {"wantedReplicas": 3}
    given = ELASTIC.replicas(replicas).recovery(scope=scope).was("Running", memory=memory)
    given = given.having(*(pod(i).running() for i in range(3))).in_queue(problem=NO_ANSWER)

    decision = plan(given.snapshot())
    assert (decision.verdict, decision.actions) == (None, ())
    status = new_status(given.snapshot(), None)
    assert (status["ready"], status["memory"]["wantedReplicas"]) == ("3/3", 3)


def test_elastic_job_that_runs_with_fewer_tries_again_once_kueue_can_be_asked() -> None:
    shortage = {"replicas": 4, "tries": 1, "retryAt": int(NOW) - 1}
    given = ELASTIC.was("Running", memory={"wantedReplicas": 2, "shortage": shortage})
    given = given.having(pod(0).running(), pod(1).running())
    waiting = given.in_queue(problem=NO_ANSWER).snapshot()
    assert plan(waiting).verdict is None

    later = given.stored(new_status(waiting, None)).in_queue(ELASTIC.workload("QuotaReserved", "Admitted"))
    verdict = plan(later.snapshot()).verdict
    assert isinstance(verdict, Resize)
    assert verdict.why == "Retrying with all 4 replicas"


@pytest.mark.parametrize(
    "known",
    [(), (TWO.workload("Admitted", admission=SPOT),)],
    ids=["nothing is known", "another namespace fails"],
)
def test_no_pod_is_created_while_kueue_cannot_be_asked(known: tuple[WorkloadView, ...]) -> None:
    """It would have no flavor, and perhaps no quota any more."""
    given = TWO.was("Recovering").having(pod(0).running()).in_queue(*known, problem=NO_ANSWER)
    decision = plan(given.snapshot())
    assert not decision.actions
    status = new_status(given.snapshot().after(given.pods, decision.refusal), None)
    ready = next(c for c in status["conditions"] if c["type"] == "PodsReady")
    assert (ready["reason"], ready["message"]) == ("QueueUnavailable", NO_ANSWER)


def test_prebuilt_workload_is_adopted_and_never_deleted() -> None:
    prebuilt = HELD.labelled(prebuilt_workload_name="made")
    assert not actions(prebuilt.in_queue(), Create)
    assert plan(prebuilt.in_queue().snapshot()).requeue_at is not None
    found = prebuilt.workload("QuotaReserved", "Admitted", owner_uid="")
    assert isinstance(plan(prebuilt.was("").in_queue(found).snapshot()).verdict, Suspend)
    (adopted,) = actions(prebuilt.in_queue(found), AdoptWorkload)
    annotated = HELD.annotated(prebuilt_workload_name="made").in_queue(found)  # as Kueue 0.18 and newer do
    assert actions(annotated, AdoptWorkload) == [adopted]
    assert adopted.metadata["ownerReferences"][0]["uid"] == UID
    ours = msgspec.structs.replace(found, owner_uid=UID)
    assert isinstance(plan(prebuilt.in_queue(ours).snapshot()).verdict, Resume)
    assert not actions(prebuilt.wants(suspend=True).in_queue(ours), Delete)


GPUS = {"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": "500m"}}
SIDECAR = {"name": "log", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}


@pytest.mark.parametrize(
    ("count", "spec", "lacks"),
    [
        param(2, {}, "", id="as the job"),
        param(3, {}, "", id="more pods"),
        param(1, {}, "is for 1 of the 2 pods of the job", id="fewer pods"),
        param(2, {"resources": {"requests": {"cpu": "0.5", "nvidia.com/gpu": "8", "memory": "1Gi"}}}, "",
              id="what Kueue filled in"),
        param(2, {"resources": {"limits": {"nvidia.com/gpu": 1}}},
              "has less nvidia.com/gpu for container trainer than the job", id="fewer GPUs"),
        param(2, {"resources": {"limits": {"nvidia.com/gpu": 8}}},
              "has less cpu for container trainer than the job", id="no processor"),
        param(2, {"resources": {"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": "1e999"}}},
              "has less cpu for container trainer than the job", id="an amount that cannot be read"),
        param(2, {"initContainers": [{**SIDECAR, "restartPolicy": None}]},
              "has less cpu for container log than the job", id="a sidecar that only started"),
        param(2, {"pod": {"limits": {"cpu": "1m"}}},
              "has resources for a whole pod, which the template does not have", id="a limit of the pod"),
        param(2, {"resourceClaims": [{"name": "gpu"}]}, "has other resourceClaims than the job", id="claims"),
    ],
)  # fmt: skip
def test_prebuilt_workload_must_ask_for_what_the_job_uses(count: int, spec: Json, lacks: str) -> None:
    """An orphaned Workload of a small job keeps its quota; a large job must not run on that."""
    given = HELD.labelled(prebuilt_workload_name="made").container(resources=GPUS)
    given = given.pod_spec(initContainers=[SIDECAR])
    trainer = {"name": "trainer", "resources": spec.get("resources", GPUS)}
    pod = {"initContainers": [SIDECAR]} | spec | {"containers": [trainer], "resources": spec.get("pod")}
    found = given.workload("Admitted", owner_uid="", asked=PodSetView(count=count, spec=pod))

    waits = given.in_queue(found)
    assert bool(actions(waits, AdoptWorkload)) == (not lacks)
    assert plan(waits.snapshot()).requeue_at is not None
    verdict = plan(waits.was("").snapshot()).verdict
    assert isinstance(verdict, Suspend)
    assert (verdict.reason == "Inadmissible", lacks in verdict.message) == (bool(lacks), True)


def test_job_that_leaves_its_queue_runs_on_and_gives_the_quota_back() -> None:
    left = TWO.running().seeing(queue=HELD.in_queue(ADMITTED).known["queue"])
    assert plan(left.snapshot()).verdict is None
    assert actions(left, Delete) == [Delete(ADMITTED)]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        param(
            TWO.wants(
                template={**TWO.spec["template"], "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "a"}}}
            ),
            "spec.template.metadata.labels",
            id="queue of the template",
        ),
        param(
            TWO.labelled(queue_name="a", max_exec_time_seconds="1h"),
            "max-exec-time-seconds",
            id="not a number",
        ),
    ],
)
def test_label_that_cannot_work_is_refused(given: JobBuilder, field: str) -> None:
    error = given.job().error
    assert error is not None
    assert field in error.field


def condition(kind: str, status: str, since: str) -> Json:
    return {"type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": since}


def test_released_quota_leaves_the_other_conditions_and_counts_the_time_that_the_job_ran() -> None:
    raw = {
        "spec": {"maximumExecutionTimeSeconds": 600},
        "status": {
            "conditions": [condition("Admitted", "True", at(-90)), condition("Evicted", "True", at(-5))],
            "admission": {"clusterQueue": "all"},
            "accumulatedPastExecutionTimeSeconds": 10,
        },
    }
    found = status_change(raw, [condition("Admitted", "False", at(0))], releases=True)
    assert found["admission"] is None
    assert found["accumulatedPastExecutionTimeSeconds"] == 100
    kept = {each["type"]: (each["status"], each["lastTransitionTime"]) for each in found["conditions"]}
    assert kept == {"Admitted": ("False", at(0)), "Evicted": ("True", at(-5))}


def test_job_that_used_up_its_time_gets_the_whole_time_when_it_is_activated_again() -> None:
    evicted = condition("Evicted", "True", at(-5)) | {
        "reason": "DeactivatedDueToMaximumExecutionTimeExceeded"
    }
    raw = {
        "spec": {"maximumExecutionTimeSeconds": 60},
        "status": {"conditions": [condition("Admitted", "True", at(-90)), evicted]},
    }
    found = status_change(raw, [condition("Admitted", "False", at(0))], releases=True)
    assert found["accumulatedPastExecutionTimeSeconds"] is None


def test_condition_keeps_the_time_of_its_last_change() -> None:
    raw = {"spec": {}, "status": {"conditions": [condition("PodsReady", "False", at(-9))]}}
    found = status_change(raw, [condition("PodsReady", "False", at(0))], releases=False)
    assert found == {"conditions": [condition("PodsReady", "False", at(-9))]}
