"""The operator as a separate process with the rights from the chart: started, stopped, killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import aiohttp

from tests.integration import api as rest
from tests.integration.api import LEASES, ApiError
from tests.integration.controlplane import ControlPlane
from tests.support import forked
from tests.support.forked import Forked, warmed
from tests.support.ports import free_port

Process = Forked | asyncio.subprocess.Process
ROOT = Path(__file__).parents[3]
NAMESPACE = "dtj-system"
LEASE, LEASE_NAMESPACE = "dtj-operator", "default"  # the chart's Role allows these
ALL_LEASES = "/apis/coordination.k8s.io/v1/leases"
READY_S = 120.0
# The machine was too slow to renew the lease, or another process took the port before the operator did.
EXCUSES = ("was not renewed for", "cannot listen on port")


@dataclass
class Operator:
    """A running operator.

    identity  name of its pod, with which it holds the lease
    log       its standard output and error
    """

    process: Process
    identity: str
    log: Path
    health_port: int
    metrics_port: int

    async def ready(self) -> None:
        """Wait until /readyz reports that its caches are filled."""
        url = f"http://127.0.0.1:{self.health_port}/readyz"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_S), aiohttp.ClientSession() as session:
                while self.process.returncode is None:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(url) as answer:
                            if answer.status == 200:
                                return
                    await asyncio.sleep(0.05)  # between two requests
        raise AssertionError(f"the operator did not become ready:\n{self.log.read_text()[-4000:]}")

    def freeze(self) -> None:
        """Stop it with SIGSTOP in the middle of its work."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue it with SIGCONT."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Kill it, as the kernel does when memory runs out."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> int:
        """Send SIGTERM, as a rolling update does, and return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), 30)


def warm() -> ForkServerContext:
    """Return what forks operators."""
    return warmed("dtj_operator.shell", "dtj_operator.app")


async def start(
    plane: ControlPlane,
    *,
    watch: str = "",
    lease: str = LEASE_NAMESPACE,
    identity: str = "operator-0",
    server: str = "",
    rate: float = 200,
    resync_s: float = 600,
    poll_s: float = 10,
    environment: Mapping[str, str] | None = None,
    namespace: str = NAMESPACE,
    module: str = "dtj_operator",
    metrics_port: int = 0,
) -> Operator:
    """Start an operator.

    watch         the only namespaces it watches, separated by commas; empty: all
    lease         the namespace of its Lease, if it watches some only; empty: the operator's own choice
    server        URL of the API server, if not the direct one
    rate          requests per second
    resync_s      seconds between full resyncs
    poll_s        seconds between polls of an agent
    environment   additional environment variables
    namespace     the namespace of its pod
    module        what to run: the operator, or a module that changes constants of it first
    metrics_port  where it serves metrics; default: a free port
    """
    health, metrics = free_port(), metrics_port or free_port()
    log = plane.folder / f"{identity}-{health}.log"
    variables = {
        **os.environ,
        "KUBECONFIG": str(plane.kubeconfig("operator", server=server)),
        "PYTHONPATH": str(ROOT / "operator/src"),
        "POD_NAME": identity,
        "POD_NAMESPACE": namespace,
        **(environment or {}),
    }
    arguments = [
        *([f"--namespace={watch}"] if watch else []),
        *([f"--lease-namespace={lease}"] if watch and lease else []),
        f"--requests-per-second={rate}",
        f"--resync-seconds={resync_s}",
        f"--agent-poll-seconds={poll_s}",
        f"--health-port={health}",
        f"--metrics-port={metrics}",
        *("--log-level=info", "--log-format=text"),
    ]
    process: Process
    if environment:  # such as libfaketime's, which the dynamic linker reads before Python starts
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-W", "error", "-m", "dtj_operator"),
                *arguments,
                env=variables,
                stdout=out,
                stderr=out,
                stdin=asyncio.subprocess.DEVNULL,
                cwd=plane.folder,
            )
    else:
        process = forked.start(warm(), module, arguments, environment=variables, out=log, folder=plane.folder)
    return Operator(process, identity, log, health, metrics)


@contextlib.asynccontextmanager
async def running(plane: ControlPlane, **options: Any) -> AsyncIterator[Operator]:
    """Run an operator that is ready; it is killed at the end in any case, and leaves no Lease."""
    operator = await start(plane, **options)
    try:
        await operator.ready()
        yield operator
    except BaseException as error:
        if operator.process.returncode is not None:  # a later wait that fails would not say so
            error.add_note(f"the operator has exited:\n{operator.log.read_text()[-4000:]}")
        raise
    finally:
        operator.thaw()
        await operator.kill()
        await remove_lease(plane, operator.identity)


async def remove_lease(plane: ControlPlane, identity: str) -> None:
    """Delete the Lease of a killed operator; the next one, of another name, would wait until it expires."""
    with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):  # there may be no API server
        async with asyncio.timeout(10), rest.connect(plane) as api:
            for lease in await api.items(ALL_LEASES, fieldSelector=f"metadata.name={LEASE}"):
                if (lease["spec"].get("holderIdentity") or "").rpartition("/")[2] == identity:
                    meta = lease["metadata"]
                    await api.delete(f"{LEASES.format(meta['namespace'])}/{meta['name']}")


class Kept:
    """An operator that is restarted whenever it exits, as a kubelet does with a container.

    now   the current process
    dead  the earlier processes
    """

    def __init__(self, begin: Callable[[], Awaitable[Operator]]) -> None:
        self._begin = begin
        self.dead: list[Operator] = []
        self.now: Operator | None = None

    async def keep(self) -> None:
        """Restart it, forever."""
        while True:
            self.now = await self._begin()
            await self.now.process.wait()
            self.dead.append(self.now)

    def freeze(self) -> None:
        """Stop it with SIGSTOP in the middle of its work."""
        assert self.now is not None
        self.now.freeze()

    def thaw(self) -> None:
        """Continue it with SIGCONT."""
        assert self.now is not None
        self.now.thaw()

    def check(self) -> None:
        """Fail if it has exited for a reason that is not one of EXCUSES."""
        for operator in self.dead:
            log = operator.log.read_text()
            assert any(excuse in log for excuse in EXCUSES), f"the operator has exited:\n{log[-4000:]}"

    async def ready(self) -> None:
        """Wait until it is ready, even if its process changes meanwhile."""
        async with asyncio.timeout(READY_S):
            while True:
                self.check()
                operator = self.now
                if operator is not None:
                    with contextlib.suppress(AssertionError):
                        await operator.ready()
                        return
                await asyncio.sleep(0.05)  # between two processes


@contextlib.asynccontextmanager
async def kept(plane: ControlPlane, *, checked: bool = True, **options: Any) -> AsyncIterator[Kept]:
    """Run an operator that is restarted whenever it exits.

    checked  whether it may exit only for one of EXCUSES
    """
    kept = Kept(lambda: start(plane, **options))
    task = asyncio.create_task(kept.keep())
    try:
        await kept.ready()
        yield kept
        if checked:
            kept.check()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if kept.now is not None:
            kept.now.thaw()
            await kept.now.kill()
            await remove_lease(plane, kept.now.identity)
