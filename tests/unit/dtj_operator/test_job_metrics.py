"""The table of jobs behind the gauges, the seconds of accelerators, and what a written status adds."""

from dataclasses import replace

import msgspec
import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from dtj_operator import metrics
from dtj_operator.job_metrics import ENDS, MOST_RESOURCES, ONE_LOSS_S, OTHER, Added, JobTable, added
from dtj_operator.model.agent_status import Incident, Ledger
from dtj_operator.model.names import Key
from dtj_operator.model.views import ConditionView
from dtj_operator.plan.actions import Fail, Fault, Restart, Succeed, Verdict
from dtj_operator.plan.report.status import new_status
from tests.support.builders import NOW, JobBuilder, at, job, pod

param = pytest.param

A, B = Key("team-a", "one"), Key("team-a", "two")
GPUS = job().replicas(2).container(resources={"limits": {"nvidia.com/gpu": 4}})


class Scraped:
    """A table with a registry of its own."""

    def __init__(self) -> None:
        self.table, self.registry = JobTable(), CollectorRegistry()
        self.registry.register(self.table)

    def saw(self, key: Key, given: JobBuilder, **status: object) -> None:
        self.table.saw(key, given.snapshot(), {"phase": "Running", **status})

    def wrote(self, key: Key, given: JobBuilder, seconds: int) -> None:
        """Write a status with this number of productive seconds."""
        status = {"phase": "Running", "conditions": [], "goodput": {"productiveSeconds": seconds}}
        self.saw(key, given, **status)
        self.table.wrote(key, given.snapshot(), None, status)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def test_jobs_are_counted_by_namespace_and_phase():
    scraped = Scraped()
    scraped.saw(A, GPUS)
    scraped.saw(B, GPUS)
    assert scraped("dtj_jobs", namespace="team-a", phase="Running") == 2

    scraped.saw(B, GPUS, phase="Failed")
    assert scraped("dtj_jobs", namespace="team-a", phase="Running") == 1
    scraped.table.forget(B)
    assert scraped("dtj_jobs", namespace="team-a", phase="Failed") is None


HELD = GPUS.was("Suspended")
TOO_LARGE = ConditionView(
    type="QuotaReserved", status="False", reason="Inadmissible", message="2 > maximum capacity"
)
OBSTACLES = [
    param(GPUS.with_network().having(pod(0).unschedulable()), "Unschedulable", id="no node has capacity"),
    param(HELD.in_queue(GPUS.workload(conditions=(TOO_LARGE,))), "Inadmissible", id="exceeds its queue"),
    param(HELD.in_queue(problem="no Kueue"), "QueueUnavailable", id="no queues at all"),
    param(HELD.in_queue(GPUS.workload()), None, id="waits for its turn"),
    param(HELD.wants(suspend=True), None, id="suspended by its user"),
    param(GPUS.with_network().having(pod(0), pod(1)), None, id="starts"),
    param(GPUS.was("Succeeded"), None, id="has finished"),
]


@pytest.mark.parametrize(("given", "reason"), OBSTACLES)
def test_jobs_whose_pods_cannot_start_are_counted_by_reason(given: JobBuilder, reason: str | None):
    scraped = Scraped()
    scraped.saw(A, given, **new_status(given.snapshot(), None))
    (gauge,) = (each for each in scraped.registry.collect() if each.name == "dtj_jobs_blocked")
    found = [(each.labels["reason"], each.value) for each in gauge.samples]
    assert found == ([(reason, 1)] if reason else [])


def test_node_that_two_jobs_avoid_is_one_node():
    scraped = Scraped()
    bad, suspected = {"node": "w1", "until": "later"}, {"node": "w2"}
    scraped.saw(A, GPUS, avoidedNodes=[bad])
    scraped.saw(B, GPUS, avoidedNodes=[bad, suspected])
    assert scraped("dtj_nodes_avoided") == 1


def test_accelerator_seconds_count_what_is_new_and_never_fall():
    def counted() -> float:
        labels = {"namespace": "team-a", "resource": "nvidia.com/gpu", "state": "productive"}
        return REGISTRY.get_sample_value("dtj_accelerator_seconds_total", labels) or 0.0

    scraped, before = Scraped(), counted()
    stored = GPUS.was("Running", goodput={"productiveSeconds": 100})
    scraped.wrote(A, stored, 110)  # the first 100 were counted by an earlier leader
    assert counted() - before == 10 * 4 * 2

    scraped.wrote(A, stored, 105)  # a restart: 5 s became lost
    scraped.wrote(A, stored, 111)
    assert counted() - before == 11 * 4 * 2


TWO = job().replicas(2)
UP = TWO.having(pod(0).running(), pod(1).running())
FAULT = Fault(reason="NodeLost", replica=1, node="w2", at=NOW, disruption=True)
BROKE = {"reason": "OOMKilled", "replica": 1, "at": at(-25)}
AGAIN = TWO.was("Running", attempt=1).running()
STEPPED = Ledger(productive=2, startup=8)


@pytest.mark.parametrize(
    ("given", "verdict", "found"),
    [
        param(TWO, None, [], id="a new job"),
        param(UP.was("Starting"), None, [(metrics.PODS_READY, (), 60)], id="all pods run"),
        param(AGAIN.was("Starting"), None, [], id="all pods run again after a suspension"),
        param(
            AGAIN.answering(attempt=1, step=1, ledger=STEPPED),
            None,
            [],
            id="the first step after a suspension",
        ),
        param(
            UP.running().wants(cleanPodPolicy="Odd").answering(in_place=1, incident=Incident(reason="Hang")),
            None,
            [],
            id="a job whose spec this operator does not support",
        ),
        param(
            UP.was("Running", failure={**BROKE, "generation": 5, "message": "as its agent saw it"}),
            Restart(replace(FAULT, reason="OOMKilled", at=NOW - 25, generation=5), counts=True),
            [(metrics.RESTARTS, ("team-a", "true"), None)],
            id="the end of a pod whose failure an agent had reported already",
        ),
        param(UP.running(), None, [], id="a running job"),
        param(
            UP.running().answering(step=1, ledger=STEPPED),
            None,
            [(metrics.FIRST_STEP, (), 58)],  # of 60 s, 2 s are productive
            id="the first step",
        ),
        param(
            UP.running().answering(step=9, ledger=STEPPED).was("Running", progress={"step": 8}),
            None,
            [],
            id="a later step",
        ),
        param(
            UP.running(),
            Succeed("AllRanksSucceeded"),
            [(metrics.FINISHED, ("team-a", "Succeeded", "AllRanksSucceeded"), None)],
            id="success",
        ),
        param(
            UP.running(),
            Fail("NoProgress", "three times", FAULT),
            [
                (metrics.FINISHED, ("team-a", "Failed", "NoProgress"), None),
                (metrics.FAULTS, ("team-a", "NodeLost"), None),
            ],
            id="failure",
        ),
        param(UP.was("Failed"), None, [], id="a job that had finished before"),
        param(
            UP.running(),
            Restart(FAULT, counts=False),
            [
                (metrics.RESTARTS, ("team-a", "false"), None),
                (metrics.FAULTS, ("team-a", "NodeLost"), None),
            ],
            id="a restart",
        ),
        param(
            UP.was("Recovering", failure=BROKE),
            Restart(FAULT, counts=False, same_incident=True),
            [],
            id="another pod of the same incident",
        ),
        param(
            UP.was("Recovering", failure=BROKE),
            None,
            [(metrics.RECOVERY, ("Job", "OOMKilled"), 25)],
            id="all pods run again after a fault",
        ),
        param(
            UP.running().answering(
                in_place=2, incident=Incident(reason="Signal"), ledger=Ledger(startup=50, recovering=10)
            ),
            None,
            [
                (metrics.FAULTS, ("team-a", "Signal"), None),
                *[(metrics.RECOVERY, ("InPlace", "Signal"), 5)] * 2,
            ],
            id="two restarts in place",
        ),
        param(
            UP.running().answering(in_place=1, incident=Incident(reason="a new word each time")),
            None,
            [
                (metrics.FAULTS, ("team-a", "Other"), None),
                (metrics.RECOVERY, ("InPlace", "Other"), 0),
            ],
            id="a reason that an agent made up",
        ),
    ],
)
def test_what_a_written_status_adds(given: JobBuilder, verdict: Verdict | None, found: list[Added]):
    s = given.snapshot()
    assert list(added(s, verdict, new_status(s, verdict))) == found


def test_loss_of_a_node_is_counted_once_for_all_jobs_on_it():
    def counted() -> float:
        return REGISTRY.get_sample_value("dtj_nodes_lost_total") or 0.0

    scraped, before = Scraped(), counted()
    for key, after_s, number in ((A, 0.0, 1), (B, ONE_LOSS_S - 1, 1), (A, ONE_LOSS_S, 2)):
        s = UP.running().seeing(monotonic=NOW + after_s).snapshot()
        verdict = Restart(FAULT, counts=False)
        status = new_status(s, verdict)
        scraped.table.saw(key, s, status)
        scraped.table.wrote(key, s, verdict, status)
        assert counted() - before == number


def counters(namespace: str) -> set[str]:
    found = (each for family in REGISTRY.collect() for each in family.samples)
    return {each.name for each in found if each.labels.get("namespace") == namespace}


def test_counters_of_a_namespace_begin_with_0():
    """Otherwise Prometheus' increase() does not see the first fault."""
    table, s, key = JobTable(), GPUS.running().snapshot(), Key("fresh", "one")
    table.saw(key, s, {"phase": "Running"})

    assert counters("fresh") == {
        "dtj_accelerator_seconds_total",
        "dtj_faults_total",
        "dtj_job_restarts_total",
        "dtj_jobs_finished_total",
    }
    labels = {"namespace": "fresh", "reason": "NodeLost"}
    assert REGISTRY.get_sample_value("dtj_faults_total", labels) == 0


def test_templates_that_name_many_accelerators_add_few_series():
    """Else one job could name thousands, and their counters would take the memory of the operator."""
    limits = {f"vendor-{number}.example/gpu": 1 for number in range(100)}
    scraped, wide = Scraped(), job().container(resources={"limits": limits}).was("Running")
    scraped.wrote(Key("wide", "one"), wide, 10)
    seconds = [
        each.labels["resource"]
        for family in REGISTRY.collect()
        for each in family.samples
        if each.name == "dtj_accelerator_seconds_total" and each.labels["namespace"] == "wide"
    ]
    assert len(set(seconds)) == MOST_RESOURCES + 1
    labels = {"namespace": "wide", "resource": OTHER, "state": "productive"}
    others = REGISTRY.get_sample_value("dtj_accelerator_seconds_total", labels)
    assert others == 10 * (100 - MOST_RESOURCES)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [param(UP.running(), Succeed("AllRanksSucceeded")), param(UP.running(), Fail("NoProgress", ""))],
)
def test_end_of_a_job_adds_to_a_counter_that_exists(given: JobBuilder, verdict: Verdict):
    s = given.snapshot()
    ((_, (_, phase, reason), _),) = added(s, verdict, new_status(s, verdict))
    assert reason in ENDS[phase]


def test_counters_of_namespaces_without_jobs_do_not_stay_forever(monkeypatch: pytest.MonkeyPatch):
    """Where each branch has a namespace for a while, a process would keep series of thousands of them."""
    monkeypatch.setattr("dtj_operator.job_metrics.LEFT_NAMESPACES", 2)
    table, s = JobTable(), GPUS.running().snapshot()
    keys = [Key(f"branch-{number}", name) for number in range(4) for name in ("one", "two")]
    for key in keys:
        own = replace(s, job=msgspec.structs.replace(s.job, namespace=key.namespace))
        for verdict in (Restart(FAULT, counts=True), Fail("NoProgress", "three times", FAULT)):
            status = new_status(own, verdict) | {"goodput": {"productiveSeconds": 9}}
            table.saw(key, own, status)
            table.wrote(key, own, verdict, status)
    every = counters("branch-0")
    assert len(every) == 4

    for key in keys[1:]:  # the first namespace keeps a job
        table.forget(key)

    left = [counters(f"branch-{number}") for number in range(4)]
    assert left == [every, set(), every, every]


def test_jobs_of_a_process_that_starts_again_are_counted_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dtj_operator.job_metrics.LEFT_NAMESPACES", 0)
    table, s, key = JobTable(), GPUS.running().snapshot(), Key("again", "one")
    s = replace(s, job=msgspec.structs.replace(s.job, namespace=key.namespace))
    verdict = Restart(FAULT, counts=True)
    status = new_status(s, verdict)
    table.saw(key, s, status)
    table.clear()
    table.saw(key, s, status)
    table.wrote(key, s, verdict, status)
    assert counters("again")

    table.forget(key)
    assert not counters("again")
