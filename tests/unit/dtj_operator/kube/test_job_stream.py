"""What kopf gets of the jobs, over a real socket and read as kopf reads it."""

import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from dtj_operator.kube import job_stream
from dtj_operator.model.names import Key
from tests.unit.dtj_operator.kube.server import Handler, Json, Server, says, serving, streams

JOBS = "/apis/dtj.dev/v1alpha1/distributedtrainingjobs"
KNOWN = Key("ns", "known")
DEEP = '{"a":' * 9_991 + "1" + "}" * 9_991


def job(name: str, fields: str = "{}") -> str:
    meta = f'"name": "{name}", "namespace": "ns", "uid": "u", "resourceVersion": "7"'
    return f'{{"metadata": {{{meta}, "managedFields": [{{"fieldsV1": {fields}}}]}}}}'


def event(kind: str, body: str) -> bytes:
    return b'{"type": "%s", "object": %s}\n' % (kind.encode(), body.encode())


def is_news(key: Key, version: str) -> bool:
    return (key, version) != (KNOWN, "7")


def sends(text: str) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type="application/json")

    return handler


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


async def read(server: Server, path: str) -> Json:
    """Read a whole answer, as kopf does."""
    async with (
        job_stream.session(server.config, is_news) as session,
        session.get(server.url + path) as answer,
    ):
        found: Json = await answer.json()
        return found


async def watched(server: Server) -> list[Json]:
    """Read the events of a watch, as kopf does."""
    async with (
        job_stream.session(server.config, is_news) as session,
        session.get(f"{server.url}{JOBS}?watch=true") as answer,
    ):
        chunks = [chunk async for chunk in answer.content.iter_chunked(1024)]
    return [json.loads(line) for line in b"".join(chunks).splitlines()]


async def test_list_has_only_names_and_versions(server: Server) -> None:
    items = f"{job('deep', DEEP)}, {job('flat')}"
    server.script.append(
        sends(f'{{"metadata": {{"resourceVersion": "9", "continue": "t"}}, "items": [{items}]}}')
    )
    found = await read(server, JOBS)

    assert (found["metadata"]["resourceVersion"], found["metadata"]["continue"]) == ("9", "t")
    assert [item["metadata"]["name"] for item in found["items"]] == ["deep", "flat"]
    assert "managedFields" not in found["items"][0]["metadata"]


async def test_watch_continues_after_a_deep_and_after_a_large_event(server: Server) -> None:
    large = '{"f": "%s"}' % ("\\\\u003c" * 1_000_000)
    lines = [
        event("ADDED", job("deep", DEEP)),
        event("MODIFIED", job("large", large)),
        event("DELETED", job("j")),
    ]
    server.script.append(streams(*lines))
    found = await watched(server)

    assert [(each["type"], each["object"]["metadata"]["name"]) for each in found] == [
        ("ADDED", "deep"),
        ("MODIFIED", "large"),
        ("DELETED", "j"),
    ]
    assert found[1]["object"]["metadata"]["resourceVersion"] == "7"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(event("ERROR", '{"code": 504, "message": "Too large resource version"}'), id="an error"),
        pytest.param(event("ERROR", '{"code": 410}'), id="an old version"),
        pytest.param(b"not JSON\n", id="a line that is not JSON"),
        pytest.param(event("INVENTED", job("j")), id="a type of event that does not exist"),
        pytest.param(event("ADDED", "[]"), id="an object that is none"),
    ],
)
async def test_kopf_makes_a_new_list_after_any_other_line(server: Server, line: bytes) -> None:
    server.script.append(streams(line))

    assert await watched(server) == [{"type": "ERROR", "object": {"code": 410}}]


async def test_what_the_operator_knows_moves_the_watch_of_kopf_forward_but_starts_nothing(
    server: Server,
) -> None:
    server.script.append(
        streams(
            *(event(kind, job("known")) for kind in ("ADDED", "MODIFIED", "DELETED")),
            event("ADDED", job("j")),
        )
    )
    found = await watched(server)

    assert [each["type"] for each in found] == ["BOOKMARK", "BOOKMARK", "DELETED", "ADDED"]
    assert found[0]["object"]["metadata"]["resourceVersion"] == "7"


async def test_only_metadata_of_jobs_is_requested_and_other_answers_stay_as_they_are() -> None:
    accepted: list[str] = []

    async def note(request: web.Request) -> web.StreamResponse:
        accepted.append(request.headers["Accept"])
        return web.json_response({"metadata": {}, "groups": [1]})

    async with serving(note, note, note) as server:
        await read(server, JOBS)
        await watched(server)
        groups = await read(server, "/apis")

    assert groups == {"metadata": {}, "groups": [1]}
    assert ["PartialObjectMetadataList;" in each for each in accepted] == [True, False, False]
    assert ["PartialObjectMetadata;" in each for each in accepted] == [False, True, False]


async def test_errors_reach_kopf_unchanged(server: Server) -> None:
    server.script.append(says({"code": 404}, 404))
    async with (
        job_stream.session(server.config, is_news) as session,
        session.get(server.url + JOBS) as answer,
    ):
        assert (answer.status, await answer.json()) == (404, {"code": 404})


async def test_token_is_sent(server: Server) -> None:
    config = server.config
    config.api_key["BearerToken"] = "Bearer secret"
    async with job_stream.session(config, is_news) as session:
        assert isinstance(session, aiohttp.ClientSession)
        assert session.headers["Authorization"] == "Bearer secret"
