"""The operator as a process of its own, with the rights that the chart gives it: started, stopped, killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.integration.controlplane import ControlPlane, free_ports

ROOT = Path(__file__).parents[3]
NAMESPACE = "dtj-system"
LEASE = "dtj-operator"  # the name that the chart's Role allows
READY_S = 60.0


@dataclass
class Operator:
    """A running operator.

    identity  name of its pod, by which it holds the lease
    log       everything that it printed
    """

    process: asyncio.subprocess.Process
    identity: str
    log: Path
    health_port: int
    metrics_port: int

    async def ready(self) -> None:
        """Wait until it says that its caches are filled."""
        url = f"http://127.0.0.1:{self.health_port}/readyz"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_S), aiohttp.ClientSession() as session:
                while self.process.returncode is None:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(url) as answer:
                            if answer.status == 200:
                                return
                    await asyncio.sleep(0.05)  # between two questions
        raise AssertionError(f"the operator did not become ready:\n{self.log.read_text()[-4000:]}")

    async def kill(self) -> None:
        """End it at once, as the kernel does when memory is short."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> int:
        """Ask it to end, as a rolling update does, and return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), 30)


async def start(
    plane: ControlPlane, *, watch: str = "", identity: str = "operator-0", server: str = "", rate: float = 200
) -> Operator:
    """Start an operator.

    watch   the only namespace it serves; all where empty
    server  another way to the API server
    rate    requests a second
    """
    health, metrics = free_ports(2)
    log = plane.folder / f"{identity}-{health}.log"
    environment = {
        **os.environ,
        "KUBECONFIG": str(plane.kubeconfig("operator", server=server)),
        "PYTHONPATH": str(ROOT / "operator/src"),
        "POD_NAME": identity,
        "POD_NAMESPACE": NAMESPACE,
    }
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-W", "error", "-m", "dtj_operator"),
            *([f"--namespace={watch}"] if watch else []),
            f"--lease-name={LEASE}",
            f"--requests-per-second={rate}",
            f"--health-port={health}",
            f"--metrics-port={metrics}",
            *("--log-level=info", "--log-format=text"),
            env=environment,
            stdout=out,
            stderr=out,
            stdin=asyncio.subprocess.DEVNULL,
            cwd=plane.folder,
        )
    return Operator(process, identity, log, health, metrics)


@contextlib.asynccontextmanager
async def running(
    plane: ControlPlane, *, watch: str = "", identity: str = "operator-0", server: str = "", rate: float = 200
) -> AsyncIterator[Operator]:
    """Have an operator that is ready; whatever happens, it is gone at the end."""
    operator = await start(plane, watch=watch, identity=identity, server=server, rate=rate)
    try:
        await operator.ready()
        yield operator
    finally:
        await operator.kill()
