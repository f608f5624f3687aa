"""Events over a real socket: sent once, then counted, and never blocking the caller."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
from aiohttp import web

from dtj_operator.kube import recorder
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.recorder import Recorder
from tests.unit.dtj_operator.kube.server import Handler, Server, refuses, says, serving, stall

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
        events = Recorder(api, "op-a", lambda: 1_800_000_000.0)
        task = asyncio.create_task(events.run())
        yield events, server
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await api.close()


async def until_asked(server: Server, times: int) -> None:
    async with asyncio.timeout(60):
        while len(server.asked) < times:  # noqa: ASYNC110 - the server is in another task
            await asyncio.sleep(0.01)


def send(events: Recorder, reason: str = "Restarting", once_per: str = "1", *, namespace: str = "ns") -> None:
    job = JOB if namespace == "ns" else {**JOB, "namespace": namespace, "uid": namespace}
    events.record(job, kind="Warning", reason=reason, note="rank 3 ended", once_per=once_per)


async def test_event_has_the_fields_that_the_api_requires() -> None:
    async with recording(OK) as (events, server):
        send(events)
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


async def test_long_note_is_cut_to_the_limit_of_the_api_which_counts_bytes() -> None:
    async with recording(OK) as (events, server):
        events.record(JOB, kind="Warning", reason="Restarting", note="ab" + "語" * 1000, once_per="1")
        await until_asked(server, 1)

    assert server.asked[0][3]["note"] == "ab" + "語" * 340  # 2 + 340 x 3 bytes; one more would be 1025


async def test_each_cause_is_sent_once() -> None:
    async with recording(OK, OK, OK) as (events, server):
        for _ in range(100):
            send(events)
        send(events, once_per="2")
        send(events, reason="Completed")
        await until_asked(server, 3)

    assert len({asked[3]["metadata"]["name"] for asked in server.asked}) == 3


async def test_event_of_an_earlier_process_is_counted_not_repeated() -> None:
    async with recording(refuses(409, "AlreadyExists"), OK) as (events, server):
        send(events)
        await until_asked(server, 2)

    method, path, _, body = server.asked[1]
    assert (method, path.rpartition("/")[2]) == ("PATCH", server.asked[0][3]["metadata"]["name"])
    assert body["series"]["count"] == 2


async def test_refused_event_is_dropped_and_the_next_ones_are_sent() -> None:
    async with recording(refuses(403, "Forbidden", "namespace is terminating"), OK, OK) as (events, server):
        send(events)
        send(events, once_per="2")
        await until_asked(server, 2)
        send(events, once_per="3")  # a refused one that was queued again would be sent before it
        await until_asked(server, 3)

    assert len({asked[3]["metadata"]["name"] for asked in server.asked}) == 3


@pytest.mark.parametrize(
    ("status", "why", "levels"),
    [
        pytest.param(403, 'User "op" cannot create resource "events"', ["WARNING", "DEBUG"], id="no right"),
        pytest.param(403, "namespace ns because it is being terminated", ["DEBUG"] * 2, id="namespace ends"),
        pytest.param(404, "namespace ns not found", ["DEBUG"] * 2, id="namespace is gone"),
    ],
)
async def test_refused_events_are_logged_now_and_then(
    status: int, why: str, levels: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "dtj_operator.kube.recorder")
    async with recording(refuses(status, "Forbidden", why), refuses(status, "Forbidden", why), OK) as (
        events,
        server,
    ):
        for number in range(3):
            send(events, once_per=str(number))
            await until_asked(server, number + 1)

    assert [each.levelname for each in caplog.records] == levels
    assert why in vars(caplog.records[0])["error"]


async def test_namespace_whose_events_get_no_answer_delays_only_its_own() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "/slow/" in request.path:
            await stall(request)
        return await OK(request)

    async with recording(*[answer] * 100) as (events, server):
        for number in range(90):
            send(events, once_per=str(number), namespace="slow")
        await until_asked(server, recorder.IN_FLIGHT // 2)
        send(events)
        await until_asked(server, recorder.IN_FLIGHT // 2 + 1)

    assert "/namespaces/ns/" in server.asked[-1][1]


async def test_events_beyond_the_queue_limit_are_dropped_and_one_namespace_has_at_most_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "QUEUE_LIMIT", 6)
    async with serving() as server:
        api = Api(server.config, Bucket(1e9), Random(1))
        events = Recorder(api, "op-a", lambda: 0.0)
        for number in range(1000):
            send(events, once_per=str(number))
        for number in range(2):
            send(events, once_per=str(number), namespace="other")
        waiting = [events._queue.get_nowait()[0] for _ in range(events._queue.qsize())]
        await api.close()

    assert [body["metadata"]["namespace"] for body in waiting] == ["ns", "ns", "ns", "other", "other"]


async def test_sent_events_make_place_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "QUEUE_LIMIT", 2)
    async with recording(OK, refuses(403, "Forbidden"), OK) as (events, server):
        for number in range(3):
            send(events, once_per=str(number))
            await until_asked(server, number + 1)
            await asyncio.sleep(0)
            while not events._waiting.may_take("ns"):  # noqa: ASYNC110 - until the answer has been read
                await asyncio.sleep(0.01)

    assert len(server.asked) == 3
