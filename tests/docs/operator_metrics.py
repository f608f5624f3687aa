"""The table of the operator's metrics in docs/operations.md; `make format` renews it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY

import dtj_operator.job_metrics  # noqa: F401 - registers all metrics
from tests.docs.blocks import ROOT, with_table

PAGE = ROOT / "docs/operations.md"
HEAD = "| metric | type | labels | meaning |\n|---|---|---|---|\n"


def rows() -> Iterator[str]:
    """Yield a row for each metric that the operator defines."""
    for collector in REGISTRY._collector_to_names:
        for family in collector.collect():
            if family.name.startswith("dtj_"):
                suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
                labels = getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ())
                if family.type == "info":
                    labels = ("version", "python")
                named = ", ".join(f"`{label}`" for label in labels or ())
                yield f"| `{family.name}{suffix}` | {family.type} | {named} | {family.documentation} |\n"


def renewed(page: str) -> str:
    """Return the page with the table of today's metrics."""
    return with_table(page, HEAD, sorted(rows()))


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
