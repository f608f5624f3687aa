"""PodGroups as their API versions write them."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from dtj_operator.kube.pod_groups import DROPPED, DROPPED_S, GRANT, UNREADABLE, Gangs, pod_groups_of

SAID = "0/1 placements are available"


def stored(version: str, *conditions: dict[str, Any]) -> bytes:
    """A PodGroup as the API server of a version answers."""
    mode = "PodGroup" if version == "v1alpha2" else {"all": {}}
    return json.dumps(
        {
            "apiVersion": f"scheduling.k8s.io/{version}",
            "kind": "PodGroup",
            "metadata": {"name": "digits-0", "namespace": "ns", "uid": "1", "resourceVersion": "7"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}, "disruptionMode": mode, "priority": 10},
            "status": {"conditions": list(conditions)},
        }
    ).encode()


def condition(kind: str, status: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": "Some", "message": SAID}


@pytest.mark.parametrize(
    ("version", "kind"), [("v1alpha2", "PodGroupScheduled"), ("v1beta1", "PodGroupInitiallyScheduled")]
)
def test_condition_says_whether_the_scheduler_has_placed_the_group(version: str, kind: str) -> None:
    waits = pod_groups_of("").decode(stored(version, condition(kind, "False")))
    assert (waits.min_count, waits.decided, waits.waits_for) == (3, True, SAID)
    placed = pod_groups_of("").decode(stored(version, condition(kind, "True")))
    assert (placed.decided, placed.waits_for) == (True, "")
    preempted = pod_groups_of("").decode(stored(version, condition("DisruptionTarget", "True")))
    assert (preempted.decided, preempted.waits_for) == (False, "")


def test_reason_why_there_are_no_gangs_is_known_until_it_is_over() -> None:
    now = 0.0
    gangs = Gangs(lambda: now)
    gangs._late = [SimpleNamespace(synced=asyncio.Event(), forbidden=True)]  # type: ignore[list-item]
    assert gangs.off("ns") == f"{UNREADABLE}: {GRANT}"
    gangs._late = ()
    assert gangs.off("ns") == ""
    gangs.note_dropped("ns")
    assert gangs.off("ns") == DROPPED
    assert not gangs.off("other"), "its pods may come through another webhook"
    now = DROPPED_S
    assert not gangs.off("ns"), "the gate is on by now, or the next pod shows it again"
