"""How many replicas an attempt has, by spec.replicas and by the capacity of the cluster."""

import pytest

from dtj_operator.model import times
from dtj_operator.model.private import Shortage
from dtj_operator.plan.actions import CreatePod, DeletePod, Resize
from dtj_operator.plan.planner import plan
from dtj_operator.plan.policies.size import requeue_at, resize
from dtj_operator.plan.report.status import new_status
from tests.support.builders import NOW, JobBuilder, job, pod

param = pytest.param
UNSCHEDULABLE = pod(2).unschedulable(since=NOW - 120)
RECENTLY = pod(2).unschedulable(since=NOW - 119)


def placed(index: int):
    return pod(index).running().on(f"w{index}")


REPLICA_SCOPE = job().replicas(3).elastic(2, 4).recovery(scope="Replica").with_network()
JOB_SCOPE = REPLICA_SCOPE.recovery(scope="Job")
OVER_QUOTA = {"type": "PodsReady", "status": "False", "reason": "QuotaExceeded", "lastTransitionTime": "-"}


def refused(given: JobBuilder, *, for_s: int) -> JobBuilder:
    """The API server has refused a pod for so long, as the stored status tells."""
    status = {**given.status, "conditions": [OVER_QUOTA], "lastTransitionTime": times.rfc3339(NOW - for_s)}
    return given.stored(status)


RUNNING = REPLICA_SCOPE.running().was("Running", memory={"wantedReplicas": 3})
STARTING = JOB_SCOPE.was("Starting", memory={"wantedReplicas": 3}).having(placed(0), placed(1))
SHORT = {"replicas": 3, "tries": 1, "retryAt": int(NOW) + 600}
SHORTENED = JOB_SCOPE.was("Running", memory={"wantedReplicas": 2, "shortage": SHORT}).having(
    placed(0), placed(1)
)


def decided(given: JobBuilder) -> tuple[int, bool] | None:
    verdict = resize(given.snapshot())
    return None if verdict is None else (verdict.size, verdict.new_attempt)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        param(RUNNING, None, id="the desired size"),
        param(
            RUNNING.replicas(2),
            (2, False),
            id="scope Replica: fewer, which must be recorded before any pod is deleted",
        ),
        param(RUNNING.replicas(4), None, id="scope Replica: more, which needs no verdict"),
        param(RUNNING.recovery(scope="Job").replicas(2), (2, True), id="scope Job: fewer"),
        param(RUNNING.recovery(scope="Job").replicas(4), (4, True), id="scope Job: more"),
        param(STARTING.but(UNSCHEDULABLE), (2, True), id="scope Job: unschedulable for two minutes"),
        param(STARTING.but(RECENTLY), None, id="scope Job: a second left"),
        param(STARTING.but(pod(2)), None, id="scope Job: the scheduler has not reported yet"),
        param(STARTING, None, id="scope Job: a pod that is not created yet"),
        param(refused(STARTING, for_s=120), (2, True), id="scope Job: refused by a quota for two minutes"),
        param(refused(STARTING, for_s=119), None, id="scope Job: refused, and a second left"),
        param(refused(STARTING, for_s=-3600), (2, True), id="scope Job: the clock was set back since"),
        param(refused(STARTING, for_s=-1), None, id="scope Job: refused just now, by a clock a second ahead"),
        param(refused(STARTING.elastic(3, 4), for_s=120), None, id="scope Job: refused, and it needs all"),
        param(
            STARTING.having(placed(0), pod(1).unschedulable(since=NOW - 500), UNSCHEDULABLE),
            None,
            id="scope Job: never below the minimum",
        ),
        param(
            STARTING.but(UNSCHEDULABLE).recovery(scope="Replica"),
            None,
            id="scope Replica: continues as it is",
        ),
        param(SHORTENED, None, id="shortage: not tried again yet"),
        param(SHORTENED.seeing(now=NOW + 600), (3, True), id="shortage: tried again"),
        param(SHORTENED.seeing(now=NOW - 13_800), None, id="shortage: not tried again for four hours"),
        param(SHORTENED.seeing(now=NOW - 13_801), (3, True), id="shortage: the clock was set back"),
        param(SHORTENED.replicas(4), (4, True), id="shortage: another spec.replicas is tried at once"),
        param(SHORTENED.replicas(2), None, id="shortage: spec.replicas is reduced to this size"),
        param(job().replicas(3).running(), None, id="a fixed size"),
    ],
)
def test_resize(given: JobBuilder, verdict: tuple[int, bool] | None) -> None:
    assert decided(given) == verdict


@pytest.mark.parametrize(
    ("tries", "pause"),
    [(0, 600), (1, 1200), (2, 2400), (40, 4 * 3600)],
    ids=["first", "second", "third", "many"],
)
def test_retries_of_the_full_size_back_off(tries: int, pause: int) -> None:
    shortage = {"replicas": 3, "tries": tries, "retryAt": int(NOW) - 500} if tries else None
    memory = {"wantedReplicas": 3, "shortage": shortage}
    verdict = resize(STARTING.was("Starting", memory=memory).but(UNSCHEDULABLE).snapshot())

    assert isinstance(verdict, Resize)
    assert verdict.shortage == Shortage(replicas=3, tries=tries + 1, retry_at=int(NOW) + pause)


def test_retry_of_the_full_size_remembers_the_shortage_and_so_backs_off_further() -> None:
    verdict = resize(SHORTENED.seeing(now=NOW + 600).snapshot())
    assert isinstance(verdict, Resize)
    assert verdict.shortage is not None
    assert (verdict.shortage.replicas, verdict.shortage.tries) == (3, 1)


def test_smaller_attempt_is_not_counted_and_says_why() -> None:
    given = STARTING.but(UNSCHEDULABLE)
    after = new_status(given.snapshot(), resize(given.snapshot()))

    assert (after["phase"], after["attempt"], after["memory"]["wantedReplicas"]) == ("Pending", 1, 2)
    assert (after["restarts"]["total"], after["memory"]["shortage"]) == (0, SHORT)
    assert after["message"] == "Restarting with 2 replicas: 1 of 3 pods could not start for 120 s"

    up = JOB_SCOPE.stored(after).having(*(pod(i, attempt=1).running().on("w") for i in (0, 1)))
    running = new_status(up.snapshot(), None)
    ready = next(c for c in running["conditions"] if c["type"] == "PodsReady")
    assert (running["phase"], running["worldSize"], running["ready"]) == ("Running", 2, "2/3")
    assert (ready["status"], ready["reason"]) == ("False", "Unschedulable")
    assert "only 2 of 3 pods could start" in ready["message"]
    env = [p for p in plan(up.without(1).was("Pending").snapshot()).actions if isinstance(p, CreatePod)]
    variables = {v["name"]: v.get("value") for v in env[0].body["spec"]["containers"][0]["env"]}
    assert (variables["WORLD_SIZE"], variables["DTJ_REPLICAS"]) == ("2", "2")


def test_the_shortage_is_forgotten_once_all_run() -> None:
    trying = JOB_SCOPE.was("Pending", memory={"wantedReplicas": 3, "shortage": SHORT})
    starting, up = trying.having(placed(0), placed(1), pod(2)), trying.having(*map(placed, range(3)))

    assert new_status(starting.snapshot(), None)["memory"]["shortage"] == SHORT, (
        "another failure doubles the delay"
    )
    assert "shortage" not in new_status(up.snapshot(), None)["memory"]


def test_scaling_up_creates_only_the_new_pods() -> None:
    grown = RUNNING.replicas(4)
    decision = plan(grown.snapshot())

    assert decision.verdict is None
    assert [a.body["metadata"]["name"] for a in decision.actions if isinstance(a, CreatePod)] == ["digits-3"]
    assert len(decision.actions) == 1
    assert new_status(grown.snapshot(), None)["memory"]["wantedReplicas"] == 3, (
        "a pod that never existed cannot vanish"
    )
    assert new_status(grown.but(pod(3)).snapshot(), None)["memory"]["wantedReplicas"] == 4


def test_scaling_down_deletes_the_highest_indices_with_their_own_grace_and_no_fault() -> None:
    shrunk = RUNNING.replicas(2)
    after = new_status(shrunk.snapshot(), resize(shrunk.snapshot()))
    assert (after["phase"], after["attempt"], after["memory"]["wantedReplicas"]) == ("Running", 0, 2)

    assert plan(shrunk.stored(after).snapshot()).actions == (DeletePod(pod(2).running().pod, None),)
    leaving = shrunk.stored(after).but(pod(2).running().deleting())
    assert (plan(leaving.snapshot()).verdict, plan(leaving.snapshot()).actions) == (None, ())
    assert (plan(leaving.replicas(3).snapshot()).verdict, plan(leaving.replicas(3).snapshot()).actions) == (
        None,
        (),
    ), "it is needed again, and waits until its name is free"


FEWER = REPLICA_SCOPE.was("Recovering", memory={"wantedReplicas": 3}).having(placed(0), placed(1))


@pytest.mark.parametrize(
    ("given", "phase"),
    [
        param(FEWER.but(UNSCHEDULABLE), "Running", id="it continues without the unschedulable pod"),
        param(FEWER.but(RECENTLY), "Recovering", id="not before two minutes"),
        param(FEWER.elastic(3, 4).but(UNSCHEDULABLE), "Recovering", id="not with fewer than the minimum"),
        param(FEWER.recovery(scope="Job").but(UNSCHEDULABLE), "Recovering", id="not with scope Job"),
        param(FEWER.but(pod(2)), "Recovering", id="not before the scheduler reports it"),
        param(refused(FEWER, for_s=120), "Running", id="it continues without the pod that a quota refuses"),
        param(refused(FEWER, for_s=119), "Recovering", id="a quota refuses it, not for two minutes yet"),
        param(FEWER, "Recovering", id="not without a pod that nothing refuses"),
        param(
            FEWER.but(pod(0).unschedulable(since=NOW - 120), placed(2)),
            "Recovering",
            id="not without replica 0, which all others wait for",
        ),
    ],
)
def test_running_with_fewer(given: JobBuilder, phase: str) -> None:
    assert new_status(given.snapshot(), None)["phase"] == phase


ASKS = RUNNING.recovery(scope="Auto").was("Running", memory={"wantedReplicas": 3, "rejoins": True})


@pytest.mark.parametrize(
    ("given", "world_size"),
    [
        pytest.param(RUNNING.answering(world_size=1), 1, id="its agents have shrunk it"),
        pytest.param(RUNNING.answering(world_size=9), 3, id="an answer that cannot be"),
        pytest.param(RUNNING.answering(), 3, id="agents that do not say"),
        pytest.param(ASKS.was("Running", worldSize=2), 2, id="an operator that has just started to ask them"),
        pytest.param(ASKS.was("Recovering", worldSize=2), 3, id="all pods run again"),
        pytest.param(RUNNING.was("Running", worldSize=2), 3, id="no agents, but all pods run"),
    ],
)
def test_world_size_of_an_elastic_job_is_what_its_agents_report(given: JobBuilder, world_size: int) -> None:
    assert new_status(given.snapshot(), None)["worldSize"] == world_size


def test_job_that_runs_with_fewer_says_so_and_succeeds_with_fewer() -> None:
    fewer = FEWER.but(UNSCHEDULABLE).was("Running")
    status = new_status(fewer.snapshot(), None)
    healthy = next(c for c in status["conditions"] if c["type"] == "Healthy")
    done = fewer.but(pod(0).succeeded(), pod(1).succeeded())

    assert (healthy["status"], healthy["reason"]) == ("True", "RunningWithFewer")
    assert (status["worldSize"], status["replicas"], status["ready"]) == (2, 2, "2/3")
    assert "pod digits-2 is unschedulable: no capacity" in status["message"]
    assert type(plan(done.snapshot()).verdict).__name__ == "Succeed"

    restarted = fewer.stored(status).but(RECENTLY)  # the operator, which has just seen the pod first
    again = new_status(restarted.snapshot(), None)
    assert (again["worldSize"], again["conditions"]) == (2, status["conditions"])


@pytest.mark.parametrize(
    ("given", "moment"),
    [
        param(STARTING.but(RECENTLY), NOW + 1, id="two minutes unschedulable"),
        param(SHORTENED, NOW + 600, id="the next try"),
        param(RUNNING, None, id="nothing to wait for"),
        param(job().having(pod(0).unschedulable(since=NOW)), None, id="a fixed size waits forever"),
    ],
)
def test_requeue_at(given: JobBuilder, moment: float | None) -> None:
    assert requeue_at(given.snapshot()) == moment
