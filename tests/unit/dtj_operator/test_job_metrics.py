"""The table of jobs behind the gauges, and the seconds of accelerators."""

import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from dtj_operator.job_metrics import JobTable
from dtj_operator.model.names import Key
from dtj_operator.model.views import ConditionView
from dtj_operator.plan.report.status import new_status
from tests.support.builders import JobBuilder, job, pod

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
