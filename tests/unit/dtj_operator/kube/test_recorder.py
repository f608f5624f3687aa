"""Events over a real socket: told once, counted after that, never in the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from dtj_operator.kube import recorder
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.recorder import Recorder
from tests.unit.dtj_operator.kube.server import Handler, Server, refuses, says, serving

JOB = {
    "apiVersion": "dtj.dev/v1alpha1",
    "kind": "DistributedTrainingJob",
    "namespace": "ns",
    "name": "j",
    "uid": "u",
}
OK = says({})


@asynccontextmanager
async def recording(*script: Handler) -> AsyncIterator[tuple[Recorder, Server]]:
    async with serving(*script) as server:
        api = Api(server.config, Bucket(1e9), Random(1))
        told = Recorder(api, "op-a", lambda: 1_800_000_000.0)
        task = asyncio.create_task(told.run())
        yield told, server
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await api.close()


async def until_asked(server: Server, times: int) -> None:
    async with asyncio.timeout(60):
        while len(server.asked) < times:  # noqa: ASYNC110 - the server is in another task
            await asyncio.sleep(0.01)


def tell(told: Recorder, reason: str = "Restarting", once_per: str = "1") -> None:
    told.record(JOB, kind="Warning", reason=reason, note="rank 3 ended", once_per=once_per)


async def test_an_event_is_what_the_api_asks_for() -> None:
    async with recording(OK) as (told, server):
        tell(told)
        await until_asked(server, 1)

    method, path, _, body = server.asked[0]
    assert (method, path) == ("POST", "/apis/events.k8s.io/v1/namespaces/ns/events")
    assert body["regarding"] == JOB
    assert (body["type"], body["reason"], body["note"]) == ("Warning", "Restarting", "rank 3 ended")
    assert body["eventTime"] == "2027-01-15T08:00:00.000000Z"
    assert (body["reportingController"], body["reportingInstance"], body["action"]) == (
        "dtj.dev/operator",
        "op-a",
        "Restarting",
    )
    assert body["metadata"]["name"].startswith("j.")


async def test_the_same_cause_is_told_once_and_another_one_too() -> None:
    async with recording(OK, OK, OK) as (told, server):
        for _ in range(100):
            tell(told)
        tell(told, once_per="2")
        tell(told, reason="Completed")
        await until_asked(server, 3)

    assert len({asked[3]["metadata"]["name"] for asked in server.asked}) == 3


async def test_what_a_process_before_us_told_is_counted_not_repeated() -> None:
    async with recording(refuses(409, "AlreadyExists"), OK) as (told, server):
        tell(told)
        await until_asked(server, 2)

    method, path, _, body = server.asked[1]
    assert (method, path.rpartition("/")[2]) == ("PATCH", server.asked[0][3]["metadata"]["name"])
    assert body["series"]["count"] == 2


async def test_an_event_that_is_refused_is_dropped_and_the_next_one_sent() -> None:
    async with recording(refuses(403, "Forbidden", "namespace is terminating"), OK) as (told, server):
        tell(told)
        tell(told, once_per="2")
        await until_asked(server, 2)


async def test_a_flood_is_dropped_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "QUEUE_LIMIT", 3)
    async with serving() as server:
        api = Api(server.config, Bucket(1e9), Random(1))
        told = Recorder(api, "op-a", lambda: 0.0)
        for number in range(1000):
            tell(told, once_per=str(number))
        waiting = told._queue.qsize()
        await api.close()

    assert waiting == 3
