"""The status that people and programs read, and when it is written."""

from dataclasses import replace

import pytest

from dtj_operator.model.agent_status import Progress
from dtj_operator.model.json import Json
from dtj_operator.model.views import ConditionView
from dtj_operator.plan.actions import Fail, Fault, Restart, Resume, Succeed, Suspend, Ungroup, Verdict
from dtj_operator.plan.policies.restart import restart
from dtj_operator.plan.report import pace
from dtj_operator.plan.report.status import events, new_status
from tests.support.builders import NOW, JobBuilder, at, job, pod

param = pytest.param
TWO = job().replicas(2)
FAULT = Fault(
    reason="Exception",
    replica=1,
    rank=1,
    node="w2",
    exit_code=1,
    message="ValueError: x",
    at=NOW,
    generation=0,
)


FALLEN = {
    "type": "Healthy",
    "status": "False",
    "reason": "Recovering",
    "message": "rank 1 failed",
    "lastTransitionTime": at(-60),
}


def status_of(builder: JobBuilder, verdict: Verdict | None = None):
    return new_status(builder.snapshot(), verdict)


def condition(builder: JobBuilder, kind: str, verdict: Verdict | None = None) -> tuple[str, str]:
    found = next(c for c in status_of(builder, verdict)["conditions"] if c["type"] == kind)
    return found["status"], found["reason"]


@pytest.mark.parametrize(
    ("given", "verdict", "phase"),
    [
        param(TWO, None, "Pending", id="no pod yet"),
        param(TWO.having(pod(0), pod(1)), None, "Starting", id="all pods exist"),
        param(TWO.having(pod(0).running(), pod(1)), None, "Starting", id="one is up"),
        param(TWO.having(pod(0).running(), pod(1).running()), None, "Running", id="all are up"),
        param(
            TWO.having(pod(0).running(), pod(1).succeeded()), None, "Running", id="one is up, one was quick"
        ),
        param(TWO.having(pod(0), pod(1).unschedulable("no cpu")), None, "Pending", id="one is unschedulable"),
        param(
            TWO.having(pod(0), pod(1).waiting("ImagePullBackOff")),
            None,
            "Pending",
            id="an image cannot be pulled",
        ),
        param(TWO.having(pod(0)).refused("QuotaExceeded"), None, "Pending", id="a quota is exceeded"),
        param(TWO.was("Recovering").having(pod(0), pod(1)), None, "Recovering", id="the new attempt starts"),
        param(
            TWO.was("Recovering").having(pod(0).running(), pod(1).running()), None, "Running", id="recovered"
        ),
        param(TWO.running(), Restart(FAULT, counts=True), "Recovering", id="restart"),
        param(TWO.running(), Suspend(), "Suspended", id="suspend"),
        param(TWO.was("Suspended"), None, "Suspended", id="still suspended"),
        param(TWO.was("Suspended"), Resume(), "Pending", id="resume"),
        param(TWO.running(), Succeed("AllRanksSucceeded"), "Succeeded", id="success"),
        param(TWO.running(), Fail("NoProgress", "x", FAULT), "Failed", id="failure"),
    ],
)
def test_phase(given: JobBuilder, verdict: Verdict | None, phase: str) -> None:
    assert status_of(given, verdict)["phase"] == phase


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        param(TWO.having(pod(0), pod(1)), ("False", "Starting"), id="starting"),
        param(TWO.having(pod(0).running(), pod(1).running()), ("True", "AllReady"), id="ready"),
        param(
            TWO.having(pod(0), pod(1).unschedulable("0/3 nodes: 3 Insufficient nvidia.com/gpu")),
            ("False", "Unschedulable"),
            id="an unschedulable pod",
        ),
        param(
            TWO.having(pod(0).waiting("ErrImagePull"), pod(1)),
            ("False", "ImagePullFailed"),
            id="an image that cannot be pulled",
        ),
        param(
            TWO.having(pod(0).waiting("CreateContainerConfigError"), pod(1)),
            ("False", "PodRejected"),
            id="a container that the kubelet rejects",
        ),
        param(
            TWO.having(pod(0).beside_sidecar(waiting="CrashLoopBackOff"), pod(1)),
            ("False", "PodRejected"),
            id="a sidecar that crashes, so that the trainer does not start",
        ),
        param(
            TWO.having(pod(0).unprepared(placed=NOW - 120), pod(1)),
            ("False", "ContainerCreating"),
            id="volumes or network that are not ready",
        ),
        param(
            TWO.having(pod(0).unprepared(placed=NOW - 119), pod(1)),
            ("False", "Starting"),
            id="the same before it counts as slow",
        ),
        param(TWO.having(pod(0).placed(NOW - 999), pod(1)), ("False", "Starting"), id="a slow image pull"),
        param(TWO.refused("NameConflict"), ("False", "NameConflict"), id="a name that is taken"),
        param(TWO.was("Suspended"), ("False", "Suspended"), id="suspended"),
    ],
)
def test_pods_ready(given: JobBuilder, expected: tuple[str, str]) -> None:
    assert condition(given, "PodsReady") == expected


VOLUMES = [
    {"name": "a", "configMap": {"name": "settings"}},
    {"name": "b", "secret": {"secretName": "s3-login"}},
    {"name": "c", "secret": {"secretName": "may-be-absent", "optional": True}},
    {"name": "d", "emptyDir": {}},
    {"name": "e", "projected": {"sources": [{"secret": {"name": "token"}}, {"configMap": {"name": "ca"}}]}},
]


@pytest.mark.parametrize(
    ("volumes", "placed", "said"),
    [
        (None, NOW - 14, None),
        (
            None,
            NOW - 15,
            "waits for its volumes or network; the kubelet's Events say why: kubectl describe pod digits-0",
        ),
        (
            VOLUMES,
            NOW - 15,
            "network; ConfigMap settings, Secret s3-login, Secret token and 1 more must exist, and",
        ),
        (
            VOLUMES,
            NOW - 120,
            "120 s after scheduling; ConfigMap settings, Secret s3-login, Secret token and 1",
        ),
    ],
)
def test_pod_that_waits_for_a_secret_is_reported_within_seconds(
    volumes: Json | None, placed: float, said: str | None
) -> None:
    given = TWO.having(pod(0).unprepared(placed=placed), pod(1).placed(NOW))
    if volumes:
        containers = [{"name": "trainer", "image": "example.org/train:1"}]
        given = given.wants(template={"spec": {"containers": containers, "volumes": volumes}})
    status = new_status(given.snapshot(), None)
    (ready,) = [each for each in status["conditions"] if each["type"] == "PodsReady"]
    if said is None:
        assert "waits" not in ready["message"]
        assert "message" not in status
    else:
        assert said in ready["message"]
        assert status["message"] in ready["message"]


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        (
            "1 node(s) had untolerated taint(s), 2 Insufficient nvidia.com/gpu.",
            "delete the job and create it with smaller requests (--cpu, --memory and --gpus of kubectl dtj ",
        ),
        (
            'persistentvolumeclaim "runs" not found. not found',
            "create the claim, or delete the job and create it with the right name",
        ),
        ("pod has unbound immediate PersistentVolumeClaims.", "describe pvc says why the claim is not bound"),
        (
            "3 node(s) didn't match Pod's node affinity/selector.",
            "suspend the job to correct nodeSelector, affinity or tolerations",
        ),
        (
            "1 node(s) had untolerated taint(s), 3 node(s) were unschedulable.",
            "uncordon the nodes that kubectl get nodes shows as SchedulingDisabled",
        ),
        ("no one knows", "add or free the missing resources"),
    ],
)
def test_unschedulable_pod_is_reported_in_the_schedulers_words_with_the_fix(said: str, fix: str) -> None:
    given = TWO.having(pod(0), pod(1).unschedulable(f"0/3 nodes are available: {said}"))
    message = status_of(given)["conditions"][0]["message"]

    assert message.startswith(f"pod digits-1 is unschedulable: 0/3 nodes are available: {said}; ")
    assert fix in message


@pytest.mark.parametrize(
    ("given", "verdict", "message"),
    [
        param(
            TWO.running(), Suspend(), "2 pods are still terminating; the grace period is 30 s", id="at once"
        ),
        param(
            TWO.having(pod(0).running().deleting(), pod(1).crashed().deleting()).was("Suspended"),
            None,
            "1 pod is still terminating; the grace period is 30 s",
            id="one has ended",
        ),
        param(TWO.was("Suspended"), None, "the job has no pods while it is suspended", id="all are gone"),
    ],
)
def test_suspended_job_says_how_many_pods_have_not_ended(
    given: JobBuilder, verdict: Verdict | None, message: str
) -> None:
    status = new_status(given.wants(suspend=True).snapshot(), verdict)

    assert status["conditions"][0]["message"] == message
    assert status.get("message", "the job has no pods while it is suspended") == message


GATED = (
    pod(1)
    .unschedulable()
    ._with(conditions=(ConditionView(type="PodScheduled", status="False", reason="SchedulingGated"),))
)
OLD = pod(1).running().deleting()


@pytest.mark.parametrize(
    ("given", "waits"),
    [
        param(
            TWO.having(pod(0), pod(1)), "; default-scheduler has not tried to place 2 of them yet", id="new"
        ),
        param(
            TWO.pod_spec(schedulerName="vulcano").having(pod(0).on("n0"), pod(1)),
            "; vulcano has not tried to place 1 of them yet",
            id="a scheduler that does not exist",
        ),
        param(TWO.having(pod(0), GATED), "; waiting for their scheduling gates", id="gates"),
        param(TWO.having(pod(0).on("n0"), pod(1).on("n1")), "", id="on their nodes"),
        param(
            TWO.having(OLD, pod(0).running().deleting()).was("Recovering", attempt=1),
            "; 2 pods are still terminating",
            id="an attempt before",
        ),
        param(
            TWO.having(OLD.owned_by("before")),
            "; 1 pod is still terminating",
            id="a deleted job of this name",
        ),
        param(
            TWO.was("Recovering", attempt=1, lastTransitionTime=at(0)).recovery(backoffSeconds=300),
            f"; new pods are created after the back-off, at {at(279)}",
            id="the back-off",
        ),
    ],
)
def test_job_that_is_starting_says_what_its_pods_wait_for(given: JobBuilder, waits: str) -> None:
    ready = new_status(given.snapshot(), None)["conditions"][0]

    assert (ready["reason"], ready["message"]) == ("Starting", f"0 of 2 pods are ready{waits}")


@pytest.mark.parametrize(
    ("refused", "fix"),
    [
        (
            "container has runAsNonRoot and image will run as root",
            "delete the job and create it with runAsUser (such as 1000) or runAsNonRoot",
        ),
        ('secret "token" not found', "create what is missing"),
        ("couldn't find key a in ConfigMap ns/b", "create what is missing"),
    ],
)
def test_container_that_cannot_be_created_is_reported_with_the_fix(refused: str, fix: str) -> None:
    given = TWO.having(pod(0).waiting("CreateContainerConfigError", refused), pod(1))
    message = status_of(given)["conditions"][0]["message"]

    said = f"container trainer of pod digits-0: CreateContainerConfigError: {refused}; {fix}"
    assert message.startswith(said)


def test_image_that_cannot_be_pulled_is_reported_with_what_the_api_server_lets_one_do() -> None:
    """Neither the image nor the pull secrets of a job can be changed, also while it is suspended."""
    given = TWO.having(pod(0).waiting("ErrImagePull", "manifest unknown"), pod(1))
    message = status_of(given)["conditions"][0]["message"]

    said, fix = message.split("; ")
    assert said.endswith("ErrImagePull: manifest unknown")
    assert fix.endswith("delete the job and create it with the right image or imagePullSecrets")


@pytest.mark.parametrize(
    ("verdict", "kind", "reason"),
    [
        param(Succeed("SuccessPolicy"), "Complete", "SuccessPolicy", id="success"),
        param(Fail("DeadlineExceeded", "late"), "Failed", "DeadlineExceeded", id="failure"),
        param(Fail("DeadlineExceeded", "late"), "Stalled", "DeadlineExceeded", id="failure, for kstatus"),
        param(Suspend(), "Suspended", "Suspended", id="suspension"),
    ],
)
def test_verdicts_become_true_conditions(verdict: Verdict, kind: str, reason: str) -> None:
    assert condition(TWO.running(), kind, verdict) == ("True", reason)


def test_healthy_is_false_from_the_fault_until_all_run_again() -> None:
    fallen = status_of(TWO.running(), Restart(FAULT, counts=True))
    rising = TWO.stored(fallen).having(pod(0, attempt=1), pod(1, attempt=1))
    risen = rising.having(pod(0, attempt=1).running(), pod(1, attempt=1).running())

    assert condition(TWO.running(), "Healthy", Restart(FAULT, counts=True)) == ("False", "Recovering")
    assert condition(rising, "Healthy") == ("False", "Recovering")
    assert condition(risen, "Healthy") == ("True", "Running")


def test_healthy_is_false_after_a_failure_and_absent_while_suspended() -> None:
    assert condition(TWO.running(), "Healthy", Fail("DeadlineExceeded", "late")) == ("False", "Failed")
    assert "Healthy" not in {each["type"] for each in status_of(TWO.running(), Suspend())["conditions"]}


def test_restart_is_counted_and_its_cause_is_kept_after_recovery() -> None:
    before = {"restarts": {"counted": 2, "disruptions": 1, "withoutProgress": 1}}
    after = status_of(TWO.running().was("Running", **before), Restart(FAULT, counts=True))

    assert after["attempt"] == 1
    assert after["restarts"] == {"total": 4, "counted": 3, "disruptions": 1, "withoutProgress": 2}
    assert after["failure"] == {
        "rank": 1,
        "replica": 1,
        "node": "w2",
        "reason": "Exception",
        "exitCode": 1,
        "message": "ValueError: x",
        "at": at(0),
        "generation": 0,
    }
    recovered = TWO.stored(after).having(pod(0, attempt=1).running(), pod(1, attempt=1).running())
    assert status_of(recovered)["failure"] == after["failure"]


def test_disruption_is_counted_apart_from_failures() -> None:
    after = status_of(TWO.running(), Restart(FAULT, counts=False))

    assert after["restarts"] == {"total": 1, "counted": 0, "disruptions": 1, "withoutProgress": 0}


def test_a_suspension_ends_the_attempt_and_the_active_time() -> None:
    suspended = status_of(TWO.running(), Suspend())
    resumed = status_of(TWO.stored(suspended), Resume())

    assert suspended["attempt"] == resumed["attempt"] == 1
    assert "startTime" not in suspended
    assert resumed["startTime"] == at(0)


def test_job_created_suspended_has_used_no_attempt() -> None:
    assert status_of(TWO.wants(suspend=True), Suspend())["attempt"] == 0


def test_counts() -> None:
    four = job().replicas(4).having(pod(0).running(), pod(1), pod(2).succeeded(), pod(3).crashed())

    assert status_of(four)["replicaStatuses"] == {"ready": 1, "active": 2, "succeeded": 1, "failed": 1}
    assert status_of(four)["worldSize"] == 4


def test_finished_status_changes_only_its_observed_generations() -> None:
    def ended(generation: int) -> JobBuilder:
        complete = {"type": "Complete", "status": "True", "observedGeneration": generation}
        counts = {"succeeded": 2}
        return TWO.was(
            "Succeeded", replicas=counts, conditions=[complete], observedGeneration=generation
        ).edited(generation=2)

    assert status_of(ended(1).having(pod(0).crashed())) == ended(2).status


UNSUPPORTED = "spec.cleanPodPolicy: invalid value 'Failed': must be one of Running, All, None"


def test_unsupported_value_changes_only_the_message_and_its_condition() -> None:
    before = status_of(TWO.running().at_step(5))
    told = TWO.running().stored(before).wants(cleanPodPolicy="Failed").edited(generation=2)
    after = status_of(told.but(pod(1).crashed()))
    found, *others = after["conditions"]

    assert after == {
        **before, "observedGeneration": 2, "message": found["message"], "conditions": [found, *others]
    }  # fmt: skip
    assert others == before["conditions"]
    assert (found["type"], found["status"], found["reason"]) == ("Accepted", "False", "UnsupportedValue")
    assert found["message"].startswith(f"{UNSUPPORTED}. This version of the operator does not support")
    assert status_of(told.stored(after)) == after


def test_job_continues_as_before_once_its_values_are_supported() -> None:
    recovering = TWO.was("Recovering", attempt=1, conditions=[FALLEN]).having(pod(0, attempt=1))
    held = recovering.stored(status_of(recovering.wants(cleanPodPolicy="Failed")))
    after = status_of(held)

    assert condition(held, "Accepted") == ("True", "Accepted")
    assert (after["phase"], after["message"]) == ("Recovering", FALLEN["message"])


def test_conditions_carry_the_generation_that_they_describe() -> None:
    found = status_of(TWO.running().edited(generation=3))["conditions"]

    assert {each["observedGeneration"] for each in found} == {3}


def test_second_status_of_the_same_moment_is_equal() -> None:
    given = TWO.having(pod(0).running(), pod(1)).at_step(5)
    first = status_of(given)

    assert status_of(given.stored(first).seeing(now=NOW + 99)) == first


def test_progress_has_strings_for_fractions() -> None:
    progress = Progress(
        attempt=0,
        observed_at=NOW,
        step=3,
        total_steps=9,
        epoch=1,
        loss=0.21344,
        samples_per_second=812.04,
        eta_s=60,
    )
    given = TWO.running().seeing(answer=progress)

    assert status_of(given)["progress"] == {
        "step": 3,
        "totalSteps": 9,
        "epoch": 1,
        "loss": "0.2134",
        "samplesPerSecond": "812",
        "eta": at(60),
        "observedAt": at(0),
        "stepAt": at(0),
    }


def test_moment_of_a_step_stays_while_it_is_the_newest() -> None:
    hangs = TWO.running().was("Running", progress={"step": 5, "stepAt": at(-90), "observedAt": at(-9)})
    assert (
        status_of(hangs.at_step(5))["progress"] | {"stepAt": at(-90), "observedAt": at(0)}
        == (status_of(hangs.at_step(5))["progress"])
    )
    assert status_of(hangs.at_step(6))["progress"]["stepAt"] == at(0)


def test_step_stays_until_a_restarted_job_reports_one() -> None:
    restarted = TWO.running().was("Running", attempt=1, progress={"step": 540, "totalSteps": 560})
    assert status_of(restarted.answering(attempt=1))["step"] == "540/560"
    assert status_of(restarted.at_step(520, attempt=1, total=560))["step"] == "520/560"


def test_the_last_report_of_replica_0_completes_the_progress() -> None:
    given = TWO.running().was("Running", progress={"step": 540, "totalSteps": 560, "observedAt": at(-9)})
    report = '{"step": 560, "totalSteps": 560, "epoch": 19, "loss": 0.04, "reason": "Done"}'
    done = given.but(pod(0).succeeded(report), pod(1).succeeded())

    assert status_of(done, Succeed("AllRanksSucceeded"))["progress"] == {
        "step": 560,
        "totalSteps": 560,
        "epoch": 19,
        "loss": "0.04",
        "observedAt": at(0),
        "stepAt": at(0),
    }


def test_last_five_failures_are_kept_latest_first() -> None:
    given = TWO.running()
    for number in range(6):
        failing = given.but(pod(1, attempt=number).crashed(number + 1, message="x" * 600)).snapshot()
        stored = new_status(failing, restart(failing))
        given = TWO.stored(stored).having(*(pod(i, attempt=number + 1).running() for i in (0, 1)))
        given = given.stored(new_status(given.snapshot(), None))

    failures = given.status["failures"]
    assert [(each["attempt"], each["exitCode"]) for each in failures] == [
        (5, 6),
        (4, 5),
        (3, 4),
        (2, 3),
        (1, 2),
    ]
    assert {len(each["message"]) for each in failures} == {500}
    assert (given.status["failure"]["exitCode"], len(given.status["failure"]["message"])) == (6, 600)


def test_failure_that_the_agents_reported_before_their_pods_ended_counts_once() -> None:
    known = {"reason": "Signal", "replica": 1, "rank": 1, "generation": 5, "at": at(-1)}
    node = {"node": "worker-1", "faults": 1, "at": at(-1)}
    stored = {"failures": [{"attempt": 0, **known}], "failure": known, "avoidedNodes": [node]}
    given = TWO.running().was("Running", **stored)
    ending = replace(FAULT, reason="Signal", replica=1, rank=1, node="worker-1", generation=5, at=NOW - 1)

    def recorded(fault: Fault) -> tuple[int, int]:
        status = status_of(given, Restart(fault, counts=True))
        return len(status["failures"]), status["avoidedNodes"][0]["faults"]

    assert recorded(ending) == (1, 1)
    assert recorded(replace(ending, generation=6)) == (2, 2)


def test_second_part_of_an_incident_does_not_add_a_failure() -> None:
    stored = {"failures": [{"attempt": 0, "reason": "Evicted"}], "failure": {"reason": "Evicted"}}
    again = Restart(FAULT, counts=False, same_incident=True)

    assert status_of(TWO.running().was("Recovering", **stored), again)["failures"] == stored["failures"]


def test_new_step_resets_the_restarts_without_progress() -> None:
    row = {"restarts": {"counted": 2, "disruptions": 0, "withoutProgress": 2}, "memory": {"highestStep": 10}}

    assert status_of(TWO.running().was("Running", **row).at_step(10))["restarts"]["withoutProgress"] == 2
    assert status_of(TWO.running().was("Running", **row).at_step(11))["restarts"] == {
        "total": 2,
        "counted": 2,
        "disruptions": 0,
        "withoutProgress": 0,
    }


def test_ten_minutes_in_phase_running_are_progress_only_if_no_steps_are_reported() -> None:
    row = {
        "restarts": {"counted": 2, "disruptions": 0, "withoutProgress": 2},
        "memory": {"identicalFailures": 2},
        "lastTransitionTime": at(-600),
    }
    plain = status_of(TWO.running().was("Running", **row))
    stepping = status_of(TWO.running().was("Running", **row | {"memory": {"highestStep": 10}}))

    assert (plain["restarts"]["withoutProgress"], "memory" in plain) == (0, False)
    assert stepping["restarts"]["withoutProgress"] == 2


STORED = {"phase": "Running", "replicaStatuses": {"ready": 1}, "progress": {"step": 1, "observedAt": at(-20)}}


@pytest.mark.parametrize(
    ("change", "moment"),
    [
        param({}, None, id="nothing new"),
        param({"phase": "Recovering"}, NOW, id="a phase: at once"),
        param({"replicaStatuses": {"ready": 2}}, NOW + 7, id="counts: ten seconds after the last write"),
        param({"progress": {"step": 2, "observedAt": at(0)}}, None, id="progress: in the job's turn"),
        param(
            {"progress": {"step": 2}, "replicaStatuses": {"ready": 2}},
            NOW + 7,
            id="progress is included in a write of counts",
        ),
        param({"restarts": {"counted": 1}}, NOW, id="a restart: at once"),
        param({"memory": {"highestStep": 9}}, None, id="the highest step waits for the progress"),
    ],
)
def test_when_a_change_is_written(change: dict[str, object], moment: float | None) -> None:
    due = pace.write_at(STORED, {**STORED, **change}, now=NOW, last_write=NOW - 3, progress_due=False)

    assert due == moment


@pytest.mark.parametrize(
    ("last_write", "stale_since", "moment"),
    [
        param(-60, None, 3, id="other changes may follow"),
        param(-60, -2, 1, id="other changes may follow until then"),
        param(-60, -5, 0, id="other changes had time to follow"),
        param(-9, None, 3, id="both"),
        param(-4, -2, 6, id="the last write was a moment ago"),
        param(60, None, 0, id="the clock was set back since the last write"),
        param(-60, 60, 0, id="the clock was set back since the first change"),
    ],
)
def test_counts_are_written_in_batches(last_write: int, stale_since: int | None, moment: int) -> None:
    """Pods finish one after another; a write for each would be useless."""
    due = pace.write_at(
        STORED,
        {**STORED, "replicaStatuses": {"ready": 2}},
        now=NOW,
        last_write=NOW + last_write,
        progress_due=True,
        stale_since=None if stale_since is None else NOW + stale_since,
    )

    assert due == NOW + moment


@pytest.mark.parametrize(
    ("old", "pods_created", "moment"),
    [
        param({}, True, NOW + 1, id="the first status waits for news of the new pods"),
        param({}, False, NOW, id="the first status at once if no pods were created"),
        param({"phase": "Running"}, True, NOW, id="any other at once"),
    ],
)
def test_when_the_first_status_is_written(old: dict[str, object], pods_created: bool, moment: float) -> None:
    due = pace.write_at(
        old, {"phase": "Starting"}, now=NOW, last_write=0, progress_due=True, pods_created=pods_created
    )

    assert due == moment


def test_progress_is_written_in_the_turn_of_the_job() -> None:
    assert pace.write_at({}, {"progress": {"step": 1}}, now=NOW, last_write=NOW, progress_due=True) == NOW


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        param({"a": 1}, {"a": 1}, {}, id="nothing"),
        param({"a": 1}, {"a": 2}, {"a": 2}, id="changed"),
        param({"a": 1}, {}, {"a": None}, id="removed"),
        param({}, {"a": 1}, {"a": 1}, id="added"),
        param({"a": {"b": 1, "c": 1}}, {"a": {"b": 1}}, {"a": {"c": None}}, id="removed inside"),
        param({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}, id="lists whole"),
    ],
)
def test_merge_patch(old: dict[str, object], new: dict[str, object], patch: dict[str, object]) -> None:
    assert pace.merge_patch(old, new) == patch


@pytest.mark.parametrize(
    ("given", "verdict", "reasons"),
    [
        param(TWO.running(), None, [], id="nothing happened"),
        param(TWO.running(), Restart(FAULT, counts=True), ["Restarting"], id="a restart"),
        param(TWO.running(), Fail("NoProgress", "x", FAULT), ["NoProgress"], id="a failure by its reason"),
        param(TWO.running(), Succeed("AllRanksSucceeded"), ["Completed"], id="success"),
        param(TWO, Ungroup(((0, "u"),)), ["Ungrouped"], id="pods that are recreated without a PodGroup"),
        param(TWO.refused("QuotaExceeded"), None, ["QuotaExceeded"], id="an obstacle"),
        param(
            TWO.having(pod(0).unprepared(placed=NOW - 120), pod(1)),
            None,
            ["ContainerCreating"],
            id="volumes or network that are not ready",
        ),
        param(
            TWO.running().wants(cleanPodPolicy="Failed"),
            None,
            ["UnsupportedValue"],
            id="an unsupported value",
        ),
        param(TWO.was("Succeeded").wants(cleanPodPolicy="Failed"), None, [], id="the same in a finished job"),
        param(
            TWO.was(
                "Pending",
                conditions=[
                    {
                        "type": "PodsReady",
                        "status": "False",
                        "reason": "QuotaExceeded",
                        "lastTransitionTime": at(0),
                    }
                ],
            ).refused("QuotaExceeded"),
            None,
            [],
            id="a known obstacle",
        ),
    ],
)
def test_events(given: JobBuilder, verdict: Verdict | None, reasons: list[str]) -> None:
    snapshot = given.snapshot()

    assert [event.reason for event in events(snapshot, verdict, new_status(snapshot, verdict))] == reasons


LATE = pod(1).running().on("n1").overdue(60)
EVICTED = TWO.workload("QuotaReserved", "Admitted", "Evicted")
WAITING = (
    job()
    .replicas(2)
    .recovery(scope="Replica")
    .was("Recovering", message="old", memory={"replacing": {"1": LATE.pod.uid}})
)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        param(WAITING.having(pod(0).running(), LATE), "PodTerminating", id="a pod that is replaced"),
        param(
            WAITING.having(pod(0).running(), LATE).was("Recovering", attempt=1),
            "PodTerminating",
            id="an attempt",
        ),
        param(
            WAITING.having(pod(0).running(), LATE).was("Suspended").wants(suspend=True),
            "PodTerminating",
            id="suspended",
        ),
        param(
            WAITING.having(pod(0).running(), pod(1).running().on("n1").overdue(-1)),
            "Starting",
            id="within its grace period",
        ),
        param(
            job()
            .replicas(1)
            .elastic(1, 2)
            .recovery(scope="Replica")
            .was("Running", wantedReplicas=1)
            .having(pod(0).running(), LATE),
            "AllReady",
            id="scaled down: no pod waits for it",
        ),
    ],
)
def test_pod_that_does_not_terminate_is_reported_if_the_job_waits_for_it(given, reason) -> None:
    found = new_status(given.snapshot(), None)

    assert next(c for c in found["conditions"] if c["type"] == "PodsReady")["reason"] == reason


@pytest.mark.parametrize(
    ("given", "verdict", "beginning"),
    [
        param(WAITING, None, "", id="replaced"),
        param(TWO.wants(suspend=True).was("Suspended"), None, "", id="suspended"),
        param(TWO.wants(suspend=True).was("Running"), Suspend(), "", id="when it is suspended"),
        param(TWO.in_queue(EVICTED).was("Suspended"), None, "", id="evicted by its queue"),
        param(TWO.was("Running").deleted(), None, "the job is being deleted; ", id="deleted"),
    ],
)
def test_pod_that_does_not_terminate_is_named_by_the_message_and_one_event(
    given: JobBuilder, verdict: Verdict | None, beginning: str
) -> None:
    given = given.having(pod(0).running(), LATE)
    status = new_status(given.snapshot(), verdict)

    assert status["message"].startswith(f"{beginning}pod digits-1 on node n1 does not terminate")
    ready = status["conditions"][0]
    assert (ready["reason"], ready["message"]) == ("PodTerminating", status["message"])
    assert "PodTerminating" in [each.reason for each in events(given.snapshot(), verdict, status)]
    later = given.stored(status).snapshot()
    assert not events(later, None, new_status(later, None))


def test_message_about_a_pod_that_does_not_terminate_says_where_since_when_and_what_helps() -> None:
    found = new_status(WAITING.having(pod(0).running(), LATE).snapshot(), None)

    assert found["message"] == (
        f"pod digits-1 on node n1 does not terminate: its grace period ended at {at(-70)}; on a Ready "
        "node it is force-deleted 300 s after that (recovery.terminationSeconds); to do it at once: "
        "kubectl delete pod digits-1 -n team-a --force --grace-period=0"
    )
    held = new_status(WAITING.having(pod(0).running(), LATE.held_by("example.com/audit")).snapshot(), None)
    assert held["message"].startswith(
        "pod digits-1 has ended, but its finalizer example.com/audit keeps it; its controller must"
    )
    never = new_status(
        WAITING.having(pod(0).running(), LATE).recovery(terminationSeconds="Never").snapshot(), None
    )
    assert "terminationSeconds is Never, so the job waits for its end" in never["message"]


def test_other_number_of_ranks_that_train_is_an_event() -> None:
    """Whether replicas joined, left or were lost; a new attempt has an Event of its own."""
    up = [pod(index).running() for index in range(3)]
    grown = job().elastic(1, 3).replicas(3).recovery(scope="Replica").having(*up)

    def said(before: int, ranks: int, verdict: Verdict | None = None, phase: str = "Running") -> list[str]:
        given = grown.was(phase, worldSize=before, wantedReplicas=3).answering(world_size=ranks)
        found = events(given.snapshot(), verdict, new_status(given.snapshot(), verdict))
        return [each.note for each in found if each.reason == "Resized"]

    assert said(2, 3) == ["the job trains with 3 ranks now, before with 2"]
    assert said(3, 1) == ["the job trains with 1 rank now, before with 3"]
    assert said(3, 3) == []
    assert said(2, 3, Restart(FAULT, counts=True)) == []
    assert said(2, 3, phase="Starting") == []
