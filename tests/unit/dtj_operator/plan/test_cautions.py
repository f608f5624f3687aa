"""What a job asks of the scheduler and the cluster does not do."""

from typing import Any

import pytest

from dtj_operator.model.views import NodeView
from dtj_operator.plan.report.status import events, new_status
from tests.support.builders import JobBuilder, job, pod

param = pytest.param
TWO = job().replicas(2)
OFF = "the API server drops schedulingGroup"


def in_racks(mode: str, *racks: str) -> JobBuilder:
    """Two jobs' pods run, if they are allowed to, on nodes with these values of the label rack."""
    nodes = {
        f"n{i}": NodeView(name=f"n{i}", labels={"rack": rack} if rack else {}) for i, rack in enumerate(racks)
    }
    return TWO.wants(scheduling={"topology": {"key": "rack", "mode": mode}}).seeing(nodes=nodes)


def told(given: JobBuilder) -> tuple[str, str, list[str]]:
    """Reason and message of PodsReady, and the reasons of the Events."""
    snapshot = given.snapshot()
    status = new_status(snapshot, None)
    ready = next(each for each in status["conditions"] if each["type"] == "PodsReady")
    return ready["reason"], ready["message"], [each.reason for each in events(snapshot, None, status)]


UP = (pod(0).running().on("n0"), pod(1).running().on("n1"))
WAITING = (pod(0), pod(1).unschedulable("0/2 nodes are available"))


@pytest.mark.parametrize(
    ("given", "reason", "says", "recorded"),
    [
        param(
            in_racks("Required", "", "").having(*WAITING),
            "UnknownTopology",
            "so the pods wait",
            ["UnknownTopology"],
            id="required label that no node has",
        ),
        param(
            in_racks("Preferred", "", "").having(*UP),
            "AllReady",
            "so the pods run anywhere",
            ["UnknownTopology"],
            id="preferred label that no node has",
        ),
        param(
            in_racks("Required", "r1", "").having(*WAITING),
            "Unschedulable",
            "0/2 nodes are available",
            ["Unschedulable"],
            id="a node has the label",
        ),
        param(in_racks("Required").having(pod(0), pod(1)), "Starting", "0 of 2", [], id="no nodes yet"),
        param(
            TWO.seeing(gangs_off=OFF).having(pod(0), pod(1)),
            "Starting",
            OFF,
            ["GangsOff"],
            id="PodGroups that pods cannot join",
        ),
        param(
            TWO.seeing(gangs_off=OFF).wants(scheduling={"gang": "None"}).having(pod(0), pod(1)),
            "Starting",
            "0 of 2",
            [],
            id="the same, but the job wants none",
        ),
    ],
)
def test_what_the_cluster_does_not_do_is_in_the_condition_and_in_an_event(
    given: JobBuilder, reason: str, says: str, recorded: list[str]
) -> None:
    found, message, reasons = told(given)
    assert (found, says in message, reasons) == (reason, True, recorded)


def test_event_is_recorded_once() -> None:
    given = in_racks("Preferred", "", "").having(*UP)
    status: dict[str, Any] = new_status(given.snapshot(), None)
    assert told(given.stored(status))[2] == []


def test_status_names_the_domains_of_the_pods_and_keeps_them_at_the_end() -> None:
    given = in_racks("Preferred", "r2", "r1").having(*UP)
    status = new_status(given.snapshot(), None)
    assert status["domains"] == ["r1", "r2"]
    unreadable = given.stored(status).seeing(nodes=None)
    assert new_status(unreadable.snapshot(), None)["domains"] == ["r1", "r2"]
    assert "domains" not in new_status(TWO.having(*UP).snapshot(), None)
