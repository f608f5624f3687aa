"""Events about a job."""

from typing import Any

import pytest

from dtj_client.job import Job
from dtj_client.kube.kubectl import Kubectl
from dtj_client.show.events import Event, of_kubelet

OLD = {
    "metadata": {},
    "lastTimestamp": "2026-01-01T12:00:05Z",
    "count": 3,
    "reason": "RestartedInPlace",
    "message": "m",
}
NEW = {
    "metadata": {},
    "eventTime": "2026-01-01T12:00:01Z",
    "series": {"count": 4, "lastObservedTime": "2026-01-01T12:00:04Z"},
    "type": "Warning",
    "reason": "Restarting",
}


def test_events_of_either_kind_are_in_the_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def items(_kubectl: Kubectl, kind: str, *options: str) -> list[dict[str, Any]]:
        assert (kind, options) == ("events", ("--field-selector=involvedObject.uid=u",))
        return [OLD, NEW]

    monkeypatch.setattr(Kubectl, "job", lambda _kubectl, _name: {"metadata": {"uid": "u"}})
    monkeypatch.setattr(Kubectl, "items", items)
    found = Job("digits").events()
    assert found == [
        Event("2026-01-01T12:00:04Z", "Warning", "Restarting", "", 4),
        Event("2026-01-01T12:00:05Z", "Normal", "RestartedInPlace", "m", 3),
    ]
    assert str(found[1]) == "2026-01-01T12:00:05Z Normal RestartedInPlace: m (3 times)"


UNPREPARED: dict[str, Any] = {
    "metadata": {"name": "digits-1", "uid": "u1"},
    "spec": {"nodeName": "a"},
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}],
    },
}


def test_kubelet_says_which_secret_a_pod_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = 'MountVolume.SetUp failed for volume "a" : secret "b" not found\x1b[2J'
    asked: list[str] = []

    def items(_kubectl: Kubectl, _kind: str, *options: str) -> list[dict[str, Any]]:
        asked.extend(options)
        early = {"metadata": {}, "lastTimestamp": "2026-01-01T12:00:00Z", "reason": "FailedAttachVolume"}
        late = {"metadata": {}, "lastTimestamp": "2026-01-01T12:00:05Z", "reason": "FailedMount"}
        return [{**late, "message": said}, early]

    running: dict[str, Any] = {**UNPREPARED, "status": {"phase": "Running"}}
    monkeypatch.setattr(Kubectl, "items", items)
    monkeypatch.setattr(Kubectl, "pods", lambda *_: [running, UNPREPARED])
    job: dict[str, Any] = {"metadata": {"name": "digits"}, "spec": {"replicas": 2}}
    monkeypatch.setattr(Kubectl, "job", lambda *_: job)

    shown = Job("digits").report().splitlines()
    assert f"  pod digits-1: FailedMount: {said[:-4]}?[2J" in shown
    assert asked == ["--field-selector=involvedObject.uid=u1,type=Warning"]
    assert of_kubelet(Kubectl(), [running]) == ""
