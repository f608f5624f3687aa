"""The table of jobs behind the gauges, and the seconds of accelerators."""

from prometheus_client import REGISTRY, CollectorRegistry

from dtj_operator.job_metrics import JobTable
from dtj_operator.model.names import Key
from tests.support.builders import JobBuilder, job

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


def test_jobs_whose_pods_cannot_start_are_counted_by_reason():
    scraped = Scraped()
    for reason in ("Unschedulable", "Starting"):
        condition = {"type": "PodsReady", "status": "False", "reason": reason}
        scraped.saw(Key("team-a", reason), GPUS, conditions=[condition])
    assert scraped("dtj_jobs_blocked", namespace="team-a", reason="Unschedulable") == 1
    assert scraped("dtj_jobs_blocked", namespace="team-a", reason="Starting") is None


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
