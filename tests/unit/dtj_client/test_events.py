"""Events about a job."""

from typing import Any

import pytest

from dtj_client.events import Event
from dtj_client.job import Job
from dtj_client.kubectl import Kubectl

OLD = {
    "metadata": {},
    "lastTimestamp": "2026-01-01T12:00:05Z",
    "count": 3,
    "reason": "Healed",
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
        Event("2026-01-01T12:00:05Z", "Normal", "Healed", "m", 3),
    ]
    assert str(found[1]) == "2026-01-01T12:00:05Z Normal Healed: m (3 times)"
