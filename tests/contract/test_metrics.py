"""The metrics listed in the docs are those that the operator and the agent expose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dtj import contract
from dtj.agent.report.status_server import metrics
from tests.docs import operator_metrics

DOCS = Path(__file__).parents[2] / "docs"


def listed(page: str, heading: str) -> set[str]:
    """Return the metrics in the table below a heading."""
    section = (DOCS / page).read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall("`(dtj_[a-z0-9_]+)`", row)}


def exposed(text: str) -> set[str]:
    """Return the names of the families in Prometheus' text format."""
    found = re.findall(r"^# TYPE (dtj_\S+) ", text, re.MULTILINE)
    return {name for name in found if not name.endswith("_created")}


def test_operators_metrics_are_those_on_the_page():
    page = operator_metrics.PAGE.read_text()
    assert operator_metrics.renewed(page) == page, "run make format"


def test_agents_metrics_are_those_on_the_page():
    document: dict[str, Any] = dict.fromkeys(contract.STATUS_FIELDS, 1)
    document["checkpoint"] = {"step": 1}
    document["ranks"] = [{"rank": 0, "state": "Running", "step": 1}]
    document["slowest"] = {"rank": 0, "replica": 0, "ratio": 2.0}
    assert exposed(metrics(document)) == listed("watching.md", "Metrics of a job")
