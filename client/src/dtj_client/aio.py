"""The verbs of dtj_client for asyncio: the same names and arguments, awaited.

    from dtj_client import aio as dc

    job = await dc.submit("train.py", replicas=2)
    async for line in job.logs(follow=True):
        print(line)
    print(await job.wait(), (await job.status).restarts)

kubectl runs in threads. A call that waits (`wait`, `stop`, `logs`) ends when it is cancelled; one that
changes the cluster is finished nevertheless.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from dtj_client import api, job
from dtj_client.api import cluster
from dtj_client.errors import ClientError
from dtj_client.job import Status
from dtj_client.kube.kubectl import Json, Kubectl
from dtj_client.show.events import Event
from dtj_client.show.logs import Line
from dtj_client.submission.template import Template

__all__ = [
    "ClientError",
    "Event",
    "Job",
    "Line",
    "Status",
    "Template",
    "cluster",
    "get",
    "submit",
    "templates",
]
T = TypeVar("T")


async def submit(program: str | Path | Callable[..., object], *arguments: object, **options: Any) -> "Job":
    """Run a program or a function as a new job; arguments and options are those of dtj_client.submit."""
    made = await asyncio.to_thread(api.submit, program, *arguments, **options)
    return Job(made.name, made.kubectl)


async def get(kubectl: Kubectl | None = None) -> list["Job"]:
    """Return the jobs of the namespace. Raises ClientError."""
    return [Job(each.name, each.kubectl) for each in await asyncio.to_thread(api.get, kubectl)]


async def templates(kubectl: Kubectl | None = None) -> list[Template]:
    """Return what submit takes as a template. Raises ClientError."""
    return await asyncio.to_thread(api.templates, kubectl)


@dataclass(frozen=True)
class Job:
    """One DistributedTrainingJob, as dtj_client.Job; its attributes are awaited like its methods."""

    name: str
    kubectl: Kubectl = field(default_factory=Kubectl, repr=False)

    @property
    def manifest(self) -> Awaitable[Json]:
        return asyncio.to_thread(lambda: self._job.manifest)

    @property
    def status(self) -> Awaitable[Status]:
        return asyncio.to_thread(lambda: self._job.status)

    @property
    def phase(self) -> Awaitable[str]:
        return asyncio.to_thread(lambda: self._job.phase)

    async def report(self) -> str:
        return await asyncio.to_thread(self._job.report)

    async def suspend(self) -> None:
        await asyncio.to_thread(self._job.suspend)

    async def resume(self) -> None:
        await asyncio.to_thread(self._job.resume)

    async def scale(self, replicas: int) -> None:
        await asyncio.to_thread(self._job.scale, replicas)

    async def delete(self) -> None:
        await asyncio.to_thread(self._job.delete)

    async def wait(self, timeout: float | None = None) -> str:  # noqa: ASYNC109 - as in dtj_client.Job
        """Wait until the job has finished and return its phase. Raises TimeoutError after `timeout` s."""
        return await self._until_cancelled(lambda waiting: waiting.wait(timeout))

    async def stop(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as in dtj_client.Job
        """Let the pods save a checkpoint and end, then delete the job.

        Raises TimeoutError after `timeout` seconds; the job is then suspended.
        """
        await self._until_cancelled(lambda waiting: waiting.stop(timeout))

    async def logs(
        self,
        *,
        follow: bool = False,
        replicas: Collection[int] | None = None,
        ranks: Collection[int] | None = None,
        since: str = "",
        tail: int | None = None,
    ) -> AsyncIterator[Line]:
        """Yield the lines of all replicas in the order of time, as dtj_client.Job.logs."""

        def read() -> Iterator[Line]:
            return self._job.logs(follow=follow, replicas=replicas, ranks=ranks, since=since, tail=tail)

        async with contextlib.aclosing(_from_thread(read)) as lines:
            async for line in lines:
                yield line

    async def stacks(self, ranks: Collection[int] | None = None) -> list[str]:
        """Return where each rank is at this moment."""
        return await asyncio.to_thread(lambda: list(self._job.stacks(ranks)))

    async def events(self) -> list[Event]:
        """Return what the operator did or found, the oldest first."""
        return await asyncio.to_thread(self._job.events)

    async def plot(self, target: str | Path) -> int:
        """Draw loss and rate over time into a file; return the number of logged steps."""
        return await asyncio.to_thread(self._job.plot, target)

    async def _until_cancelled(self, call: Callable[[job.Job], T]) -> T:
        """Call a method that waits, in a thread of its own: those of asyncio are few."""
        over = threading.Event()
        waiting = replace(self._job, _over=over)
        try:
            async with contextlib.aclosing(_from_thread(lambda: iter([call(waiting)]))) as answers:
                return await anext(answers)
        finally:
            over.set()

    @cached_property  # it remembers which job it has seen
    def _job(self) -> job.Job:
        return job.Job(self.name, self.kubectl)


async def _from_thread(make: Callable[[], Iterator[T]]) -> AsyncGenerator[T, None]:
    """Yield what an iterator yields in a thread; the thread ends no later than at the item after the last.

    It is a daemon, so that a reader that waits for a quiet job does not keep the program from ending.
    """
    loop, items = asyncio.get_running_loop(), asyncio.Queue[tuple[list[T], BaseException | None]]()
    is_over = threading.Event()

    def put(found: list[T], error: BaseException | None = None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no reader is left
            loop.call_soon_threadsafe(items.put_nowait, (found, error))

    def read() -> None:
        try:
            for each in make():
                if is_over.is_set():
                    return
                put([each])
        except Exception as error:  # noqa: BLE001 - raised to the reader
            put([], error)
        else:
            put([])

    threading.Thread(target=read, daemon=True).start()
    try:
        while (got := await items.get())[0]:
            yield got[0][0]
        if got[1]:
            raise got[1]
    finally:
        is_over.set()
