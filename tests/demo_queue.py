"""`make demo-queue`: a real Kueue preempts a job with real ranks for another one, and admits it again.

It needs a Kueue (`tests.integration.kueue.manager`), and no cluster: the API server, Kueue, the operator and
the ranks are processes of this machine; only the kubelet is simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from rich.console import Console

from tests.bench.preemption import Kubelets, low_job, one, planes
from tests.integration.controlplane import ControlPlane
from tests.integration.kueue.conftest import QueuedCluster

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """Run the demo and return the exit status of the process."""
    with planes() as (plane, folder):
        lost, restarts = asyncio.run(shown(plane, folder))
    console.print(f"\nlow was preempted and continued: {lost} steps repeated, {restarts} restarts counted.")
    return 0 if lost <= 1 and not restarts else 1


async def shown(plane: ControlPlane, folder: Path) -> tuple[int, int]:
    """Preempt a job once, print what both jobs say; return how many steps it repeated, and its restarts."""
    async with low_job(plane, folder) as (cluster, kubelet):
        watching = asyncio.create_task(tell(cluster, kubelet))
        try:
            lost = await one(cluster, kubelet, "high")
            return lost, (await cluster.job("low"))["status"]["restarts"]["total"]
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


async def tell(cluster: QueuedCluster, kubelet: Kubelets) -> None:
    """Print each change of a job's phase or message."""
    last: dict[str, str] = {}
    async for kind, job in cluster.api.watch_on(cluster.jobs):
        name, status = job["metadata"]["name"], job.get("status", {})
        line = f"{status.get('phase', ''):<10} {status.get('message', '')}"
        if kind != "DELETED" and status.get("phase") and last.get(name) != line:
            last[name] = line
            console.print(f"[cyan]{name:<5}[/cyan] step {kubelet.last_step():>4}  {line}")


if __name__ == "__main__":
    sys.exit(main())
