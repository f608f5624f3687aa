"""When a job is read from the API server, and which versions of it are news."""

from collections.abc import AsyncIterator
from random import Random

import pytest
from aiohttp import web

from dtj_operator.kube import jobs
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.errors import ApiError, NotFound
from dtj_operator.kube.jobs import Jobs, TooLargeError
from dtj_operator.model.names import Key
from tests.unit.dtj_operator.kube.server import Handler, Json, lacks, refuses, says, serving

KEY = Key("ns", "j")


class Known(Jobs):
    """Jobs of an API server that answers from a script, with a clock that the test sets."""

    def __init__(
        self, api: Api, script: list[Handler], asked: list[tuple[str, str, dict[str, str], Json]]
    ) -> None:
        self.changed: list[Key] = []
        super().__init__(api, self.changed.append, lambda: self.now)
        self.script, self.asked, self.now = script, asked, 1000.0

    async def reads(self, version: str) -> bool:
        """Read the job while the API server has this version; return whether it was asked."""
        self.script[:] = [says(job(version))]
        await self.read(KEY)
        return not self.script

    async def writes(self, answer: Handler) -> Json:
        self.script[:] = [answer]
        return await self.write_status(KEY, "7", {"phase": "Running"})


@pytest.fixture
async def known() -> AsyncIterator[Known]:
    async with serving() as server:
        api = Api(server.config, Bucket(1e9), Random(1))
        yield Known(api, server.script, server.asked)
        await api.close()


def job(version: str) -> Json:
    return {"metadata": {"name": "j", "namespace": "ns", "uid": "u", "resourceVersion": version}}


async def test_job_is_read_once_until_it_changes(known: Known) -> None:
    assert known.note(KEY, "7"), "its first version"
    assert await known.reads("7")
    assert not await known.reads("7")
    assert not known.note(KEY, "7")
    assert not await known.reads("7")

    assert known.note(KEY, "8")
    assert await known.reads("8")
    assert not await known.reads("8")


async def test_version_that_is_older_than_what_was_read_is_not_news(known: Known) -> None:
    await known.reads("8")
    assert not known.note(KEY, "7")
    assert not await known.reads("8")


async def test_answer_of_a_write_is_used_and_its_event_is_not_news(known: Known) -> None:
    await known.reads("7")
    assert (await known.writes(says(job("8"))))["metadata"]["resourceVersion"] == "8"
    assert known.asked[-1][0] == "PATCH"
    assert known.asked[-1][3] == {"metadata": {"resourceVersion": "7"}, "status": {"phase": "Running"}}
    assert not known.note(KEY, "8")
    assert not await known.reads("8")
    assert known.changed == []


def shown_meanwhile(known: Known, version: str, answer: Handler) -> Handler:
    """Answer after the watch has shown a version."""

    async def handler(request: web.Request) -> web.StreamResponse:
        assert not known.note(KEY, version), "what it is depends on the answer"
        return await answer(request)

    return handler


async def test_event_that_is_faster_than_the_answer_to_the_write_is_not_news(known: Known) -> None:
    await known.writes(shown_meanwhile(known, "8", says(job("8"))))
    assert known.changed == []
    assert not await known.reads("8")


async def test_change_during_a_write_is_reported_after_it(known: Known) -> None:
    await known.writes(shown_meanwhile(known, "9", says(job("8"))))
    assert known.changed == [KEY]
    assert await known.reads("9")


@pytest.mark.parametrize("status", [409, 422])
async def test_job_is_read_again_after_a_write_that_failed(known: Known, status: int) -> None:
    await known.reads("7")
    with pytest.raises(ApiError):
        await known.writes(refuses(status))
    assert known.changed == []
    assert await known.reads("7")

    with pytest.raises(ApiError):
        await known.writes(shown_meanwhile(known, "8", refuses(status)))
    assert known.changed == [KEY], "its back-off must not delay the change"


async def test_answer_that_is_older_than_what_the_watch_has_shown_is_not_kept(known: Known) -> None:
    await known.reads("6")
    known.script[:] = [shown_while_reading(known, "8", says(job("7")))]
    known.note_gone(KEY)
    await known.read(KEY)

    assert await known.reads("8")


def shown_while_reading(known: Known, version: str, answer: Handler) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert known.note(KEY, version)
        return await answer(request)

    return handler


async def test_silent_watch_is_trusted_for_a_minute(known: Known) -> None:
    await known.reads("7")
    known.now += jobs.KEEP_S - 1
    assert not await known.reads("7")
    known.now += 1
    assert await known.reads("7")


async def test_only_the_latest_jobs_are_kept(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MOST", 2)
    await known.reads("7")
    for name in ("a", "b"):
        known.script[:] = [says(job("7"))]
        await known.read(Key("ns", name))
    assert await known.reads("7")


async def test_large_job_is_not_kept(known: Known) -> None:
    large = {**job("7"), "status": {"message": "a" * jobs.LARGEST_COPY}}
    for _ in range(2):
        known.script[:] = [says(large)]
        await known.read(KEY)
        assert not known.script


async def test_job_whose_spec_would_take_the_memory_of_the_operator_is_not_read(known: Known) -> None:
    within, beyond = (
        {**job("7"), "spec": {"a": "b" * (jobs.LARGEST_SPEC - len('{"a":""}') + more)}} for more in (-10, 1)
    )
    known.script[:] = [says(within)]
    await known.read(KEY)
    known.script[:] = [says(beyond)]
    with pytest.raises(TooLargeError, match="the spec has 256 KiB, but the operator reads at most 256: move"):
        await known.read(KEY)


async def gone(known: Known, answer: Handler) -> bool:
    """Read the job, which does not exist; return whether the API server was asked."""
    known.script[:] = [answer]
    with pytest.raises(NotFound):
        await known.read(KEY)
    return not known.script


async def test_job_that_is_gone_is_looked_up_once_until_one_of_its_name_is_shown(known: Known) -> None:
    """Its children disappear one by one, and each is a reason to reconcile it."""
    await known.reads("7")
    known.note_gone(KEY)
    assert await gone(known, lacks("distributedtrainingjobs", "j"))
    assert not await gone(known, lacks("distributedtrainingjobs", "j"))

    assert known.note(KEY, "5"), "after a restore from a backup the versions begin again"
    assert await known.reads("5")


async def test_job_that_is_created_while_its_predecessor_is_looked_up_is_read(known: Known) -> None:
    await gone(known, shown_while_reading(known, "9", lacks("distributedtrainingjobs", "j")))
    assert await known.reads("9")


async def test_list_shows_what_the_watch_has_missed_and_not_what_is_newer_than_itself(known: Known) -> None:
    same, changed, late, gone, new = (Key("ns", name) for name in ("same", "changed", "late", "gone", "new"))
    for key in (same, changed, gone):
        known.script[:] = [says(job("7"))]
        await known.read(key)
        known.note(key, "7")
    known.note(late, "10")
    known.note(new, "10")

    assert known.note_all({same: "7", changed: "8", late: "8"}, "9") == [changed]
    assert known.shown == {same: "7", changed: "8", late: "10", new: "10"}


def test_list_of_a_namespace_says_nothing_about_the_jobs_of_another(known: Known) -> None:
    gone, other = Key("ns", "gone"), Key("other", "job")
    for key in (gone, other):
        known.note(key, "7")

    assert known.note_all({}, "9", "ns") == []
    assert known.shown == {other: "7"}
