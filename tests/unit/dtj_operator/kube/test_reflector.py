"""The pod cache follows the cluster over a real socket, through every failure of a watch."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest

from dtj_operator.kube import reflector
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.cache import PodCache
from dtj_operator.kube.errors import Unavailable
from dtj_operator.kube.reflector import Reflector
from dtj_operator.model.names import Key
from tests.unit.dtj_operator.kube.server import (
    Handler,
    Server,
    hangs_up,
    refuses,
    says,
    serving,
    stall,
    streams,
)

param = pytest.param
KEY = Key("ns", "j")
Json = dict[str, Any]


def pod(index: int, version: int, phase: str = "Running") -> Json:
    labels = {"dtj.dev/job-name": "j", "dtj.dev/replica-index": str(index), "dtj.dev/attempt": "0"}
    meta = {
        "name": f"j-{index}",
        "namespace": "ns",
        "uid": f"u{index}",
        "resourceVersion": str(version),
        "labels": labels,
    }
    return {"metadata": meta, "status": {"phase": phase}}


def page(*pods: Json, version: int, more: str = "") -> Handler:
    return says({"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(pods)})


def event(kind: str, body: Json) -> Json:
    return {"type": kind, "object": body}


def bookmark(version: int) -> Json:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


IDLE = streams(then=stall)


class Followed:
    """A running reflector, with methods to wait for the contents of its cache."""

    def __init__(self, server: Server) -> None:
        self._changed = asyncio.Event()
        self.server = server
        self.api = Api(server.config, Bucket(1e9), Random(1))
        self.cache = PodCache(lambda *_: self._changed.set(), clock=time.monotonic)
        self.reflector = Reflector(self.api, self.cache, None, Random(1))

    def shown(self) -> dict[str, str]:
        return {view.name: view.phase for view in self.cache.of(KEY)}

    async def until(self, expected: dict[str, str]) -> None:
        async with asyncio.timeout(60):
            while self.shown() != expected:
                self._changed.clear()
                await self._changed.wait()

    def watched_from(self) -> list[str]:
        return [query["resourceVersion"] for _, _, query, _ in self.server.asked if query.get("watch")]

    async def until_watched_from(self, *versions: str) -> None:
        async with asyncio.timeout(60):
            while self.watched_from() != list(versions):  # noqa: ASYNC110 - the server is in another task
                await asyncio.sleep(0.01)


@asynccontextmanager
async def following(*script: Handler) -> AsyncIterator[Followed]:
    async with serving(*script) as server:
        followed = Followed(server)
        task = asyncio.create_task(followed.reflector.run())
        try:
            yield followed
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await followed.api.close()


async def test_list_is_read_in_pages() -> None:
    async with following(page(pod(0, 1), version=9, more="t"), page(pod(1, 2), version=9), IDLE) as followed:
        await followed.until({"j-0": "Running", "j-1": "Running"})

        assert followed.server.asked[1][2]["continue"] == "t"
        assert followed.server.asked[0][2]["labelSelector"] == "dtj.dev/job-name"


async def test_events_change_the_cache() -> None:
    events = (
        event("ADDED", pod(1, 11)),
        event("MODIFIED", pod(0, 12, "Failed")),
        event("DELETED", pod(1, 13)),
    )
    async with following(page(pod(0, 1), version=10), streams(*events, then=stall)) as followed:
        await followed.until({"j-0": "Failed"})


async def test_event_of_many_megabytes_is_applied_and_the_watch_continues() -> None:
    large = pod(0, 11, "Failed") | {"spec": {"containers": [{"env": "<" * 5_000_000}]}}
    events = (event("MODIFIED", large), event("ADDED", pod(1, 12)))
    async with following(page(pod(0, 1), version=10), streams(*events, then=stall)) as followed:
        await followed.until({"j-0": "Failed", "j-1": "Running"})

        assert followed.watched_from() == ["10"]


async def test_object_that_cannot_be_decoded_is_skipped() -> None:
    """The API server sends none; if one comes, other jobs must not stop."""
    bad = pod(2, 12) | {"status": {"phase": ["Running"]}}
    events = (event("ADDED", bad), event("MODIFIED", pod(0, 13, "Failed")))
    async with following(
        page(pod(0, 1), bad, pod(1, 2), version=10), streams(*events, then=stall)
    ) as followed:
        await followed.until({"j-0": "Failed", "j-1": "Running"})

        assert followed.watched_from() == ["10"]


async def test_any_exception_leads_to_a_new_list(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(
        page(pod(0, 1), version=10), streams(event("ADDED", pod(1, 11))), page(pod(2, 12), version=20), IDLE
    ) as followed:
        broken = iter([RecursionError("too deep")])
        observe = followed.cache.observe

        def fail_once(view: Any, **options: Any) -> None:
            if view.name == "j-1" and (error := next(broken, None)):
                raise error
            observe(view, **options)

        monkeypatch.setattr(followed.cache, "observe", fail_once)
        await followed.until({"j-2": "Running"})


async def test_ended_watch_continues_at_the_last_bookmark() -> None:
    ends = streams(bookmark(42))
    async with following(page(version=10), ends, IDLE) as followed:
        await followed.until_watched_from("10", "42")


@pytest.mark.parametrize(
    "fault",
    [
        param(streams(event("ERROR", {"code": 410, "message": "too old"})), id="410 in an event"),
        param(streams(event("ERROR", {"code": 500, "message": "?"})), id="an unexpected error event"),
        param(refuses(410, "Expired"), id="410 as an answer"),
        param(streams(then=hangs_up()), id="a cut connection"),
        param(streams(b"not JSON\n"), id="a line that is not JSON"),
    ],
)
async def test_failed_watch_leads_to_a_new_list_that_shows_deletions(fault: Handler) -> None:
    before, after = page(pod(0, 1), pod(1, 2), version=10), page(pod(1, 2), version=20)
    async with following(before, fault, after, IDLE) as followed:
        await followed.until({"j-1": "Running"})
        await followed.until_watched_from("10", "20")


async def test_silence_leads_to_a_new_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "SILENCE_S", 0.2)
    before, after = page(pod(0, 1), version=10), page(version=20)
    async with following(before, IDLE, after, IDLE) as followed:
        await followed.until({"j-0": "Running"})
        await followed.until({})


async def test_api_server_that_is_down_at_first_is_waited_for() -> None:
    async with following(*[refuses(503)] * 4, page(pod(0, 1), version=10), IDLE) as followed:
        await followed.until({"j-0": "Running"})
        assert followed.reflector.synced.is_set()


@pytest.mark.parametrize(("asked_s", "waited_s"), [(0, 0.5), (30, 30), (3600, 60)])
async def test_new_list_waits_for_as_long_as_the_api_server_asks(asked_s: int, waited_s: float) -> None:
    async with following(page(version=1), IDLE) as followed:
        error = Unavailable("GET /pods", 429, "TooManyRequests", "slow down", float(asked_s))
        assert followed.reflector._wait_after(error, 0.5) == waited_s


async def test_list_restarts_if_the_continue_token_has_expired() -> None:
    torn = (page(pod(0, 1), version=9, more="t"), refuses(410, "Expired"))
    async with following(*torn, page(pod(1, 2), version=10), IDLE) as followed:
        await followed.until({"j-1": "Running"})


async def test_garbage_in_a_label_stops_nothing() -> None:
    garbled = pod(0, 1)
    garbled["metadata"]["labels"]["dtj.dev/replica-index"] = "first"
    async with following(page(garbled, version=10), IDLE) as followed:
        await followed.until({"j-0": "Running"})

        assert followed.cache.of(KEY)[0].index == -1
