"""What an operator process costs, by its own /metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass

import aiohttp

from tests.integration.operator.process import Operator


@dataclass(frozen=True, kw_only=True)
class Usage:
    """CPU seconds so far, resident memory now."""

    cpu_s: float
    resident_mib: float


async def usage(operator: Operator) -> Usage:
    """Ask the operator."""
    url = f"http://127.0.0.1:{operator.metrics_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()

    def value(name: str) -> float:
        match = re.search(rf"^{name} (\S+)", text, re.MULTILINE)
        assert match, f"the operator reports no {name}"
        return float(match[1])

    return Usage(
        cpu_s=value("process_cpu_seconds_total"),
        resident_mib=value("process_resident_memory_bytes") / 2**20,
    )
