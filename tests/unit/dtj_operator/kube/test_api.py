"""Calls over a real socket: which are retried, which errors are raised, and what is sent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException

from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.errors import Answered, ApiError, Conflict, Expired, NotFound, Refused, Unavailable
from tests.unit.dtj_operator.kube.server import (
    Handler,
    Server,
    hangs_up,
    lacks,
    refuses,
    says,
    serving,
    stall,
    streams,
)

param = pytest.param
OK = says({"kind": "Pod"})


@asynccontextmanager
async def talking(*script: Handler) -> AsyncIterator[tuple[Api, Server]]:
    async with serving(*script) as server:
        api = Api(server.config, Bucket(1e9), Random(1))
        try:
            yield api, server
        finally:
            await api.close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        param(400, Refused, id="bad request"),
        param(403, Refused, id="forbidden, by a role or a quota"),
        param(413, Refused, id="too large"),
        param(422, Refused, id="invalid"),
        param(404, Answered, id="a 404 that names no object"),
        param(409, Conflict, id="exists, or changed"),
        param(410, Expired, id="gone"),
        param(401, Answered, id="not logged in"),
    ],
)
async def test_permanent_error_is_raised_at_once_with_the_servers_message(
    status: int, kind: type[ApiError]
) -> None:
    async with talking(refuses(status, "Because", "exceeded quota: q")) as (api, server):
        with pytest.raises(kind) as caught:
            await api.get("/x")

        assert (caught.value.status, caught.value.reason, caught.value.message) == (
            status,
            "Because",
            "exceeded quota: q",
        )
        assert str(caught.value) == f"GET /x: {status} Because: exceeded quota: q"
        assert len(server.asked) == 1


NODE, JOBS = "/api/v1/nodes/n1", "/apis/dtj.dev/v1alpha1/namespaces/a/distributedtrainingjobs"


@pytest.mark.parametrize(
    ("path", "answer", "kind"),
    [
        param(NODE, lacks("nodes", "n1"), NotFound, id="the object"),
        param(f"{NODE}/status", lacks("nodes", "n1"), NotFound, id="the object of a subresource"),
        param(
            f"{JOBS}/status", lacks("distributedtrainingjobs", "status"), NotFound, id="an object so named"
        ),
        param(NODE, lacks("nodes", "n2"), Answered, id="another object of this kind"),
        param(f"{JOBS}/n1", lacks("nodes", "n1"), Answered, id="an object of another kind"),
        param(JOBS, lacks("namespaces", "a"), Answered, id="the namespace of a new object"),
        param(f"{JOBS}/j", refuses(404, "NotFound"), Answered, id="nothing: the version is not served"),
        param(f"{JOBS}/j", says({"details": ["j"]}, 404), Answered, id="nothing that we understand"),
    ],
)
async def test_only_a_404_that_names_the_object_means_that_it_does_not_exist(
    path: str, answer: Handler, kind: type[ApiError]
) -> None:
    async with talking(answer) as (api, _):
        with pytest.raises(ApiError) as caught:
            await api.get(path)

    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "fault",
    [
        param(refuses(500), id="500"),
        param(refuses(503), id="503"),
        param(refuses(429, Retry_After="0"), id="429"),
        param(hangs_up(), id="a cut connection"),
    ],
)
async def test_temporary_error_is_retried(fault: Handler) -> None:
    async with talking(fault, fault, OK) as (api, server):
        await api.create("/x", {"a": 1})

        assert [asked[3] for asked in server.asked] == [{"a": 1}] * 3


@pytest.mark.parametrize(
    "message",
    [
        param('Internal error occurred: failed calling webhook "a.b.c": connection refused', id="a webhook"),
        param("etcdserver: request is too large", id="an object that is too large"),
    ],
)
async def test_500_that_comes_again_is_a_refusal(message: str) -> None:
    async with talking(refuses(500, "InternalError", message)) as (api, server):
        with pytest.raises(Refused, match=message):
            await api.create("/x", {"a": 1})

        assert len(server.asked) == 1


async def test_retries_stop_if_the_server_stays_broken() -> None:
    async with talking(*[refuses(500, message="etcd is sad")] * 9) as (api, server):
        with pytest.raises(Unavailable, match="etcd is sad"):
            await api.get("/x")

        assert len(server.asked) == 4


async def test_long_retry_after_is_left_to_the_queue() -> None:
    async with talking(refuses(429, Retry_After="30"), OK) as (api, server):
        with pytest.raises(Unavailable) as caught:
            await api.get("/x")

        assert caught.value.after_s == 30
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), ConfigException("Token file exists but empty.")]
)
async def test_token_that_cannot_be_read_is_a_call_without_an_answer(error: Exception) -> None:
    def refresh(_: Configuration) -> None:
        raise error

    async with serving() as server:
        config = server.config
        config.refresh_api_key_hook = refresh  # type: ignore[assignment]  # declared as None
        api = Api(config, Bucket(1e9), Random(1))
        with pytest.raises(Unavailable, match=str(error.args[-1])):
            await api.update("/x", {})
        await api.close()


async def test_update_is_not_retried() -> None:
    async with talking(refuses(500), OK) as (api, server):
        with pytest.raises(Unavailable):
            await api.update("/x", {"metadata": {"resourceVersion": "7"}})

        assert len(server.asked) == 1


async def test_delete_carries_its_preconditions() -> None:
    async with talking(OK, OK) as (api, server):
        await api.delete("/x", uid="u", grace_s=5)
        await api.delete("/x", uid="u", version="7")

    assert server.asked[0][3] == {
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Background",
        "gracePeriodSeconds": 5,
    }
    assert server.asked[1][3] == {
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "propagationPolicy": "Background",
    }


async def test_patch_is_a_merge_patch_and_keeps_unknown_fields() -> None:
    kinds: list[str] = []

    async def remember(request: web.Request) -> web.StreamResponse:
        kinds.append(request.headers["Content-Type"])
        return await OK(request)

    async with talking(remember) as (api, server):
        await api.patch("/x", {"status": {"fieldFromTheFuture": None}})

    assert kinds == ["application/merge-patch+json"]
    assert server.asked[0][3] == {"status": {"fieldFromTheFuture": None}}


async def test_the_manager_of_written_fields_is_the_same_for_all_pods_of_the_operator() -> None:
    """The API server takes it from the beginning of the User-Agent, up to a slash."""
    seen: list[str] = []

    async def remember(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["User-Agent"])
        return await OK(request)

    async with serving(remember, remember) as server:
        for identity in ("dtj-operator-1", "dtj-operator-2"):
            api = Api(server.config, Bucket(1e9), Random(1), identity=identity)
            await api.patch("/x", {})
            await api.close()

    assert [agent.split("/")[0] for agent in seen] == ["dtj-operator"] * 2
    assert [agent.split()[1] for agent in seen] == ["(dtj-operator-1)", "(dtj-operator-2)"]


async def test_error_contains_an_answer_that_is_not_json() -> None:
    async with talking(*[_html] * 4) as (api, _):
        with pytest.raises(Unavailable, match="proxy says no"):
            await api.get("/x")


async def _html(_: web.Request) -> web.Response:
    return web.Response(status=502, text="<html>proxy says no</html>")


async def test_watch_yields_whole_lines_and_drops_a_torn_one() -> None:
    async with (
        talking(streams({"n": 1}, {"n": 2}, b'{"n": ')) as (api, _),
        api.watch("/x", [("watch", "true")], silence_s=5) as lines,
    ):
        assert [line async for line in lines] == [b'{"n": 1}', b'{"n": 2}']


async def test_silent_watch_is_noticed() -> None:
    async with (
        talking(streams({"n": 1}, then=stall)) as (api, _),
        api.watch("/x", [], silence_s=0.1) as lines,
    ):
        with pytest.raises(Unavailable, match="Timeout"):
            [line async for line in lines]


async def test_cut_watch_is_noticed() -> None:
    async with (
        talking(streams({"n": 1}, then=hangs_up())) as (api, _),
        api.watch("/x", [], silence_s=5) as lines,
    ):
        with pytest.raises(Unavailable):
            [line async for line in lines]
