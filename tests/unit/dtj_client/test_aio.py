"""The verbs for asyncio."""

import asyncio
import inspect
import threading
from collections.abc import Iterator

import pytest

import dtj_client
from dtj_client import aio, errors, job
from dtj_client.aio import _from_thread
from dtj_client.errors import ClientError, ForbiddenError, GoneError, UnansweredError, UnreachableError
from dtj_client.kube.kubectl import Json, Kubectl


class Phases(Kubectl):
    """A cluster whose job has these phases, one after the other; the last one stays."""

    def job(self, _name: str) -> Json:
        before = threading.current_thread() is threading.main_thread()
        assert not before, "kubectl blocks, so it must not run in the thread of the loop"
        return {"status": {"phase": _PHASES.pop(0) if len(_PHASES) > 1 else _PHASES[0], "attempt": 3}}


_PHASES: list[str] = []


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "POLL_S", 0.001)
    monkeypatch.setattr(errors, "_RETRY_S", 0.001)


def test_names_are_the_same() -> None:
    for name in dtj_client.__all__:
        assert not inspect.ismodule(getattr(dtj_client, name)), f"the module {name} hides a name"
    assert set(aio.__all__) == set(dtj_client.__all__) - {"__version__"}
    public = {name for name in vars(job.Job) if not name.startswith("_")}
    assert public - {"running_pods"} == {name for name in vars(aio.Job) if not name.startswith("_")}
    for name in public - {"running_pods"}:
        there, here = getattr(job.Job, name, None), getattr(aio.Job, name, None)
        if callable(there) and callable(here):
            assert inspect.signature(there).parameters == inspect.signature(here).parameters, name


async def test_wait_returns_the_last_phase() -> None:
    _PHASES[:] = ["", "Running", "Succeeded"]
    found = aio.Job("digits", Phases())
    assert await found.wait() == "Succeeded"
    assert (await found.status).attempt == 3


class Busy(Phases):
    """A cluster that fails once, as it is asked for the first time."""

    def job(self, name: str) -> Json:
        if _ERRORS:
            raise _ERRORS.pop()
        return super().job(name)

    def pods(self, _name: str) -> list[Json]:
        return []


_ERRORS: list[ClientError] = []


async def test_first_question_is_asked_again_if_the_api_server_is_busy() -> None:
    """But not if there may be none."""
    found, _PHASES[:] = aio.Job("digits", Busy()), ["Succeeded"]
    _ERRORS[:] = [UnansweredError("TLS handshake timeout")]
    assert await found.wait() == "Succeeded"
    _ERRORS[:] = [UnreachableError("no such host")]
    with pytest.raises(UnreachableError):
        await found.wait()


class Silent(Phases):
    """A cluster that gives no answer about the job, or none about its pods."""

    def job(self, name: str) -> Json:
        if not _PHASES:
            raise UnansweredError("TLS handshake timeout")
        return super().job(name)

    def pods(self, _name: str) -> list[Json]:
        raise UnreachableError("no answer")


async def test_first_question_without_an_answer_ends_with_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "PATIENCE_S", 5.0)
    for _PHASES[:], call in (([], "wait"), (["Succeeded"], "stop")):
        with pytest.raises(TimeoutError):
            await getattr(aio.Job("digits", Silent()), call)(timeout=0)


async def test_stop_without_an_answer_says_whether_the_job_is_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Silent, "patch", lambda *_: None)
    for phase, said in (
        ("Running", "no answer so far; job digits is suspended"),
        ("Failed", "no answer so far"),
    ):
        _PHASES[:] = [phase]
        with pytest.raises(TimeoutError) as raised:
            await aio.Job("digits", Silent()).stop(timeout=0)
        assert str(raised.value) == said


class Stopping(Phases):
    """A cluster that gives no answer to the first question about pods and to the first deletion."""

    def pods(self, _name: str) -> list[Json]:
        if not _DELETED:
            _DELETED.append("asked")
            raise UnreachableError("no answer")
        return []

    def delete(self, _kind: str, name: str) -> None:
        _DELETED.append(name)
        raise UnreachableError("no answer") if len(_DELETED) == 2 else GoneError("there is no job digits")


_DELETED: list[str] = []


async def test_stop_asks_again_if_there_is_no_answer() -> None:
    _PHASES[:] = ["Succeeded"]
    await aio.Job("digits", Stopping()).stop()
    assert _DELETED == ["asked", "digits", "digits"]


class Vanishing(Kubectl):
    """A cluster whose job is deleted as soon as it has finished; `_EVENTS` are the reasons of its Events."""

    def job(self, _name: str) -> Json:
        if not _PHASES:
            raise GoneError("there is no job digits")
        return {"metadata": {"uid": "u"}, "status": {"phase": _PHASES.pop(0)}}

    def items(self, kind: str, *options: str) -> list[Json]:
        assert (kind, options) == ("events", ("--field-selector=involvedObject.uid=u",))
        if not _EVENTS:
            raise ForbiddenError("alice may not list events here")
        return [{"metadata": {}, "reason": reason, "message": "why"} for reason in _EVENTS]


_EVENTS: list[str] = []


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        (["Restarting", "Completed"], job.Status(phase="Succeeded")),
        (["Restarting", "RestartBudgetSpent"], job.Status(phase="Failed", message="why")),
    ],
)
async def test_events_say_how_a_job_ended_that_was_deleted_at_once(
    events: list[str], ended: job.Status
) -> None:
    _PHASES[:], _EVENTS[:] = ["", "Running"], events
    found = aio.Job("digits", Vanishing())
    assert (await found.wait(), await found.status) == (ended.phase, ended)
    _PHASES[:] = ["Running"]
    there = job.Job("digits", Vanishing())
    assert (await asyncio.to_thread(there.wait), await asyncio.to_thread(lambda: there.status)) == (
        ended.phase,
        ended,
    )


@pytest.mark.parametrize(
    ("phases", "events", "said"),
    [
        (["Running"], ["Restarting"], "was deleted, and no Event says"),
        (["Running"], [], "was deleted, and no Event says"),
        ([], ["Completed"], "there is no job digits"),
    ],
)
async def test_job_that_did_not_finish_is_missed(phases: list[str], events: list[str], said: str) -> None:
    _PHASES[:], _EVENTS[:] = phases, events
    with pytest.raises(ClientError, match=said):
        await aio.Job("digits", Vanishing()).wait()


async def test_wait_ends_when_its_time_is_over_and_when_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _PHASES[:] = ["Running"]
    found = aio.Job("digits", Phases())
    with pytest.raises(TimeoutError, match="digits: Running after 0 s"):
        await found.wait(timeout=0)
    monkeypatch.setattr(job, "POLL_S", 60.0)
    before = set(threading.enumerate())
    waiting = asyncio.create_task(found.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for thread in set(threading.enumerate()) - before:
        await asyncio.to_thread(thread.join, 20)
        assert not thread.is_alive()


async def test_lines_come_from_a_thread_until_the_reader_has_enough() -> None:
    ended = threading.Event()

    def lines() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            ended.set()

    found = _from_thread(lines)
    assert [await anext(found), await anext(found)] == [0, 1]
    await found.aclose()
    await asyncio.to_thread(ended.wait)


async def test_error_of_the_thread_is_raised_to_the_reader_after_its_lines() -> None:
    def lines() -> Iterator[str]:
        yield "one"
        raise ValueError("gone")

    found = _from_thread(lines)
    assert await anext(found) == "one"
    with pytest.raises(ValueError, match="gone"):
        await anext(found)
