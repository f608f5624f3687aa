"""CPU and memory of an operator process, from its own /metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.integration.operator.process import Operator


@dataclass(frozen=True, kw_only=True)
class Usage:
    """CPU seconds so far; current resident memory and jobs that wait for a worker."""

    cpu_s: float
    resident_mib: float
    waiting: int


async def usage(operator: Operator) -> Usage:
    """Read the operator's metrics."""
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
        waiting=int(value("dtj_queue_depth")),
    )


def resident_mib(pid: int) -> float:
    """Return the resident memory of any process."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert match, f"process {pid} does not exist"
    return int(match[1]) / 2**10
