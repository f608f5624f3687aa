"""Mistakes in a dashboard that the check against Grafana's schema must find."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.grafana import problems

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
DASHBOARD: dict[str, Any] = {
    "title": "one panel",
    "schemaVersion": 39,
    "time": {"from": "now-6h", "to": "now"},
    "templating": {"list": [{"name": "team", "type": "query", "datasource": SOURCE, "refresh": 2}]},
    "panels": [
        {
            "type": "timeseries",
            "title": "up",
            "datasource": SOURCE,
            "gridPos": {"h": 8, "w": 12, "x": 0, "y": 0},
            "fieldConfig": {"defaults": {"unit": "s"}, "overrides": []},
            "targets": [{"refId": "A", "datasource": SOURCE, "expr": "up"}],
        }
    ],
}


def test_valid_dashboard_has_no_problems():
    assert problems(DASHBOARD) == []


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("panels", 0, "titel"), "up", ".panels[0].titel: no such field"),
        (("panels", 0, "targets", 0, "query"), "up", ".panels[0].targets[0].query: no such field"),
        (("panels", 0, "title"), 5, "should be a valid string, not 5"),
        (("panels", 0, "gridPos", "h"), "8", "should be a valid integer, not '8'"),
        (("panels", 0, "fieldConfig", "defaults", "unit"), 3, "should be a valid string, not 3"),
        (("panels", 0, "type"), "timeserie", "unknown kind of panel 'timeserie'"),
        (("panels", 0, "datasource"), {"type": "prom"}, "a query of an unknown kind of data source"),
        (("templating", "list", 0, "refresh"), 7, "should be 0, 1 or 2, not 7"),
        (("templating", "list", 0, "type"), "querry", "not 'querry'"),
        (("time",), "now", ".time: 'now' is read as"),
        (("panels",), {"up": {}}, "must be integers"),
    ],
)
def test_mistake_is_found(path: tuple[str | int, ...], value: object, problem: str):
    dashboard = copy.deepcopy(DASHBOARD)
    *parents, last = path
    place: Any = dashboard
    for each in parents:
        place = place[each]
    place[last] = value
    assert any(problem in found for found in problems(dashboard))
