"""Polling of agents, on fake time: how often, which answers are accepted, which changes are reported."""

import asyncio
import itertools
import json
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from dtj_operator.engine.turns import Turns
from dtj_operator.model.agent_status import Incident, Ledger, SilentReplica, Straggler
from dtj_operator.model.json import Json
from dtj_operator.model.names import Key
from dtj_operator.plan.snapshot import Silence
from dtj_operator.progress import Poller

param = pytest.param
pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]
KEY = Key("ns", "j")


def identified(answer: bytes, job: str = "j") -> bytes:
    """Put the identity of replica 0 before the fields of an answer, which may repeat and so replace it."""
    return b'{"job": "%s", "jobUid": "u", "replica": 0, %s' % (job.encode(), answer.removeprefix(b"{"))


class Agents:
    """A fake pod network: answers by address, and when each address was polled."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.asked: list[tuple[float, str]] = []
        self.news_at: list[float] = []
        self.turns_at: list[float] = []
        self.writes = True  # whether the progress is written in its turn
        turns: Turns[Key] = Turns(self._on_turn, per_second=5, at_least_s=60, early_s=5)
        self.poller = Poller(self, self._on_news, lambda: 1e9 + now(), turns, poll_s=10)

    async def __call__(self, address: str) -> bytes:
        self.asked.append((now(), address))
        if address not in self.answers:
            raise ConnectionRefusedError(address)
        return identified(self.answers[address])

    def _on_news(self, _: Key) -> None:
        self.news_at.append(now())

    def _on_turn(self, key: Key) -> None:
        self.turns_at.append(now())
        if self.writes:
            self.poller.note_written(key, self.poller.last(key, "u", 0))

    def at_step(self, step: int, *, attempt: int = 0) -> None:
        self.answers["10.0.0.1"] = json.dumps({"attempt": attempt, "step": step, "state": "Running"}).encode()


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
async def agents() -> AsyncIterator[Agents]:
    made = Agents()
    yield made
    await made.poller.close()


def step(agents: Agents, attempt: int = 0) -> int | None:
    progress = agents.poller.last(KEY, "u", attempt)
    return None if progress is None else progress.step


async def test_running_job_is_polled_every_ten_seconds(agents: Agents) -> None:
    agents.at_step(3)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(35)

    assert [round(at) for at, _ in agents.asked] == [0, 10, 20, 30]
    assert step(agents) == 3


async def test_silent_agents_are_counted_although_they_are_polled_less_often(agents: Agents) -> None:
    agents.at_step(3)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    for number in (2, 3):
        agents.poller.follow(Key("ns", f"j{number}"), "u", 0, f"10.0.0.{number}")
    await asyncio.sleep(1000)
    assert (agents.poller.number(silent=False), agents.poller.number(silent=True)) == (1, 2)

    agents.answers.clear()
    await asyncio.sleep(10)
    assert (agents.poller.number(silent=False), agents.poller.number(silent=True)) == (0, 3)

    agents.poller.stop(KEY)
    assert agents.poller.number(silent=True) == 2


async def test_progress_gets_a_turn_at_once_and_then_once_a_minute(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    for number in range(14):
        agents.at_step(number)
        await asyncio.sleep(10)

    assert [round(at) for at in agents.turns_at] == [0, 60, 120]
    assert len(agents.news_at) == 1, "steps change no decision"


async def test_progress_that_was_written_with_something_else_waits_for_a_minute(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    for number in range(14):
        agents.at_step(number)
        if number == 3:
            agents.poller.note_written(KEY, agents.poller.last(KEY, "u", 0))
        await asyncio.sleep(10)

    assert [round(at) for at in agents.turns_at] == [0, 90]


async def test_reconcile_that_began_before_the_answer_does_not_use_up_the_turn(agents: Agents) -> None:
    agents.writes = False
    agents.at_step(3)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)
    agents.poller.note_written(KEY, None)

    assert agents.poller.may_write(KEY)


async def test_step_that_no_other_follows_is_written_again_so_that_its_age_shows(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    for number in range(3):
        agents.at_step(number)
        await asyncio.sleep(10)
    await asyncio.sleep(170)

    assert [round(at) for at in agents.turns_at] == [0, 60, 120, 180]


async def test_job_that_reports_no_steps_is_written_once(agents: Agents) -> None:
    agents.answers["10.0.0.1"] = b'{"attempt": 0, "step": null, "state": "Running"}'
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(300)

    assert [round(at) for at in agents.turns_at] == [0]


async def test_stepping_jobs_are_written_at_the_rate_and_none_waits_longer_than_twice_the_interval() -> None:
    agents = Agents()
    written: dict[Key, list[float]] = {}
    keys = [Key("ns", f"j-{number}") for number in range(20)]

    def on_turn(key: Key) -> None:
        written.setdefault(key, []).append(now())
        poller.note_written(key, poller.last(key, "u", 0))

    async def ask(job: str) -> bytes:
        return identified(json.dumps({"attempt": 0, "step": int(now())}).encode(), job)

    turns: Turns[Key] = Turns(on_turn, per_second=0.1, at_least_s=60, early_s=25)
    poller = Poller(ask, agents._on_news, now, turns, poll_s=50)
    for key in keys:
        poller.follow(key, "u", 0, key.name)
    await asyncio.sleep(810)
    assert turns.interval_s == 200, "20 jobs at 0.1 a second, as 1,000 at 5 a second"
    await poller.close()

    assert len(agents.news_at) == 20, "the first answer of each; no other reconcile has a cause"
    assert set(written) == set(keys)
    assert sum(map(len, written.values())) <= 810 * 0.1 + 1
    gaps = [b - a for times in written.values() for a, b in itertools.pairwise((0, *times, 810))]
    assert max(gaps) <= 2 * 200


async def test_change_that_affects_the_next_fault_is_reported_at_once(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    for more in ({}, {"rejoin": True}, {"rejoin": True, "restarts": {"inPlace": 1}}, {"rejoin": True}):
        agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 1, **more}).encode()
        await asyncio.sleep(10)

    assert [round(at) for at in agents.news_at] == [0, 10, 20, 30]


async def test_in_place_restarts_and_the_ledger_are_parsed(agents: Agents) -> None:
    ledger = {"productive": 1.5, "startup": 2, "lost": 0, "recovering": 3.25, "of the future": 1}
    failure = {
        "replica": 1,
        "rank": 3,
        "reason": "Signal",
        "exitCode": 139,
        "signal": "SIGSEGV",
        "step": None,
    }
    answer = {"attempt": 0, "rejoin": True, "restarts": {"inPlace": 2}, "ledger": ledger, "failure": failure}
    agents.answers["10.0.0.1"] = json.dumps(answer).encode()
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)
    progress = agents.poller.last(KEY, "u", 0)

    assert progress is not None
    assert (progress.rejoin, progress.in_place) == (True, 2)
    assert progress.incident == Incident(replica=1, rank=3, reason="Signal", exit_code=139, signal="SIGSEGV")
    assert progress.ledger == Ledger(productive=1.5, startup=2, lost=0, recovering=3.25)


@pytest.mark.parametrize(
    ("fields", "slowest"),
    [
        param({"slowestRank": 3}, Straggler(rank=3), id="an agent that names only the rank"),
        param(
            {"slowestRank": 3, "slowest": {"rank": 3, "replica": 1, "ratio": 2.1}},
            Straggler(rank=3, replica=1, ratio=2.1),
            id="with its replica and ratio",
        ),
        param({"slowestRank": None, "slowest": None}, None, id="no slow rank"),
    ],
)
async def test_slowest_rank_is_parsed(
    agents: Agents, fields: dict[str, object], slowest: Straggler | None
) -> None:
    agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, **fields}).encode()
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)

    progress = agents.poller.last(KEY, "u", 0)
    assert progress is not None
    assert progress.slowest == slowest


async def test_new_trouble_is_reported_at_once_but_not_its_changing_numbers(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    slow = {"rank": 1, "replica": 1, "ratio": 2.0}
    hang = {"ranks": [1], "message": "no step for 33 s"}
    failing = [{"saveFailure": f"step {step}: no space"} for step in (10, 20)]
    slower = slow | {"ratio": 2.2}
    says: list[Json] = [{}, {"slowest": slow}, {"slowest": slower}, {"hang": hang}, *failing, {}]
    for more in says:
        agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 1, **more}).encode()
        await asyncio.sleep(10)

    assert [round(at) for at in agents.news_at] == [0, 10, 30, 40, 60]


async def test_trouble_is_cleared_when_the_agent_stays_silent(agents: Agents) -> None:
    trouble = {"slowest": {"rank": 1, "replica": 1, "ratio": 2.0}, "saveFailure": "no space"}
    agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 4, **trouble}).encode()
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(5)
    agents.answers.clear()
    await asyncio.sleep(200)

    progress = agents.poller.last(KEY, "u", 0)
    assert progress is not None
    assert (progress.step, progress.slowest, progress.save_failure) == (4, None, None)
    assert [round(at) for at in agents.news_at] == [0, 15, 35]


@pytest.mark.parametrize("answers", [param(True, id="it answers"), param(False, id="it never has")])
async def test_only_an_agent_that_has_answered_can_become_silent(agents: Agents, answers: bool) -> None:
    if answers:
        agents.at_step(3)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(5)
    agents.answers.clear()
    await asyncio.sleep(6)
    assert not agents.poller.silence(KEY, "u", 0), "a single poll may get lost"
    await asyncio.sleep(10)
    assert bool(agents.poller.silence(KEY, "u", 0)) is answers
    assert not agents.poller.silence(KEY, "another", 0)
    assert not agents.poller.silence(KEY, "u", 1)

    agents.at_step(4)
    await asyncio.sleep(60)
    assert not agents.poller.silence(KEY, "u", 0)


async def test_agent_that_answered_an_earlier_process_can_become_silent_too(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1", has_answered=True)
    await asyncio.sleep(6)

    assert agents.poller.silence(KEY, "u", 0)
    assert [round(at) for at in agents.news_at] == [5]


async def test_answer_that_does_not_change_any_more_is_none(agents: Agents) -> None:
    """The process that answers is not the agent, which may be stopped or blocked."""
    agents.answers["10.0.0.1"] = b'{"attempt": 0, "step": 1, "at": "2026-01-01T00:00:00.000Z"}'
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(19)
    assert agents.poller.silence(KEY, "u", 0) is None
    await asyncio.sleep(10)

    assert agents.poller.silence(KEY, "u", 0) == Silence(since=1e9 + 10)
    agents.answers["10.0.0.1"] = b'{"attempt": 0, "step": 1, "at": "2025-01-01T00:00:00.000Z"}'
    await asyncio.sleep(10)
    assert agents.poller.silence(KEY, "u", 0) is None


async def silence_as_others_say(
    *heard_at: float | None, after_s: float = 129, named: Json | None = None
) -> tuple[Silence | None, list[float]]:
    """What is known of replica 0's agent, silent from 5 s on, that replicas 1, 2, ... heard then; and news.

    None: that replica does not answer.
    """
    agents, began = Agents(), now()

    async def ask(address: str) -> bytes:
        index = int(address.rpartition(".")[2])
        if index == 0:
            agents.at_step(3)
            return identified(agents.answers["10.0.0.1"]) if now() - began < 5 else b""
        heard = heard_at[index - 1]
        says = {"job": "j", "jobUid": "u", "replica": index, "attempt": 0, "at": str(now())}
        unheard = {} if heard is None else {"unheardSeconds": now() - began - heard}
        return json.dumps(says | unheard | (named or {})).encode()

    poller = Poller(ask, agents._on_news, lambda: 1e9 + now() - began, agents.poller._turns, poll_s=10)
    others = {index: f"10.0.0.{index}" for index in range(1, len(heard_at) + 1)}
    poller.follow(KEY, "u", 0, "10.0.0.0", others=others)
    await asyncio.sleep(after_s)
    found = poller.silence(KEY, "u", 0)
    await poller.close()
    return found, [round(at - began) for at in agents.news_at]


UNKNOWN = Silence(since=1e9)
HEARD = Silence(since=1e9, is_heard=True)


@pytest.mark.parametrize(
    ("heard_at", "found"),
    [
        param([5.0], Silence(since=1e9, unheard_since=1e9 + 5), id="the only one"),
        param([5.0, 3.0, 4.0], Silence(since=1e9, unheard_since=1e9 + 5), id="since when all do not"),
        param([5.0, 3.0, None], Silence(since=1e9, unheard_since=1e9 + 5), id="two of three"),
        param([5.0, None], UNKNOWN, id="one of two"),
        param([5.0, None, None], UNKNOWN, id="one of three"),
        param([5.0, 3.0, 120.0], HEARD, id="one still hears it"),
        param([5.0, 40.0, 40.0], UNKNOWN, id="not for long enough"),
        param([None], UNKNOWN, id="older agents do not say it"),
        param([], UNKNOWN, id="there is no other"),
    ],
)
async def test_other_agents_say_whether_they_hear_a_silent_replica_0(
    heard_at: list[float | None], found: Silence
) -> None:
    assert (await silence_as_others_say(*heard_at))[0] == found


async def test_what_other_agents_say_is_news_once() -> None:
    assert (await silence_as_others_say(5.0, after_s=600))[1] == [0, 15, 125]


@pytest.mark.parametrize(
    "named", [{"job": "k"}, {"jobUid": "v"}, {"attempt": 1}, {"replica": 2}, {"at": None}, {"at": "same"}]
)
async def test_other_agents_that_are_not_of_the_job_or_stopped_are_not_believed(named: Json) -> None:
    assert (await silence_as_others_say(5.0, named=named))[0] == UNKNOWN


async def test_agent_that_waits_for_a_replica_is_polled_more_often(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    for missing in ([], [{"replica": 1, "seconds": 21.5}], [{"replica": 1, "seconds": 31.5}], None):
        agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 1, "missing": missing}).encode()
        await asyncio.sleep(10)

    progress = agents.poller.last(KEY, "u", 0)
    assert progress is not None
    assert progress.silent_replicas == ()
    assert [round(at) for at, _ in agents.asked] == [0, 10, 15, 20, 25, 30]
    assert [round(at) for at in agents.news_at] == [0, 10, 30]


async def test_replica_missing_long_enough_to_be_replaced_is_reported_at_once(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    for seconds in (113.0, 118.0, 123.0, 128.0):
        missing = [{"replica": 1, "seconds": seconds}]
        agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 1, "missing": missing}).encode()
        await asyncio.sleep(5)

    assert [round(at) for at in agents.news_at] == [0, 10]


async def test_replica_missing_for_minutes_does_not_speed_up_polls(agents: Agents) -> None:
    missing = [{"replica": 1, "seconds": 200.0}]
    agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 1, "missing": missing}).encode()
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(25)

    progress = agents.poller.last(KEY, "u", 0)
    assert progress is not None
    assert progress.silent_replicas == (SilentReplica(replica=1, seconds=200.0),)
    assert [round(at) for at, _ in agents.asked] == [0, 10, 20]


async def test_unchanged_step_is_not_reported(agents: Agents) -> None:
    agents.at_step(3)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(300)

    assert len(agents.news_at) == 1


async def test_agents_of_a_lost_zone_do_not_delay_the_polls_of_the_others() -> None:
    asked: dict[str, list[float]] = {}

    async def ask(address: str) -> bytes:
        asked.setdefault(address, []).append(now())
        if address.startswith("lost"):
            await asyncio.sleep(1e9)  # until the poll is given up
        return identified(b'{"attempt": 0, "step": 1}')

    turns: Turns[Key] = Turns(lambda _: None, per_second=5, at_least_s=60)
    poller = Poller(ask, lambda _: None, now, turns, poll_s=10)
    for number in range(120):
        poller.follow(Key("ns", f"lost-{number}"), "u", 0, f"lost-{number}")
    poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(45)
    await poller.close()

    assert [round(at) for at in asked["10.0.0.1"]] == [0, 10, 20, 30, 40]


async def test_pod_that_does_not_answer_is_polled_less_often(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(600)

    assert len(agents.asked) < 20
    assert step(agents) is None


@pytest.mark.parametrize(
    "answer",
    [
        param(b"<html>", id="not JSON"),
        param(b'{"step": 1}', id="no attempt"),
        param(b'{"attempt": 0, "step": -1}', id="a negative step"),
        param(b'{"attempt": 0, "step": 99999999999999999999}', id="a step too large to store"),
        param(b'{"attempt": 0, "step": "1"}', id="a string"),
        param(
            b'{"attempt": 0, "step": 1, "restarts": {"inPlace": 4000000000}}',
            id="implausible number of in-place restarts",
        ),
        param(b'{"attempt": 0, "step": 1, "slowest": {"rank": -1}}', id="a negative rank"),
        param(b'{"attempt": 0, "step": 1, "ledger": {"lost": -1}}', id="negative seconds"),
        param(b'{"attempt": 0, "step": 1, "missing": [1]}', id="a missing replica that is not an object"),
        param(b'{"attempt": 0, "step": 1, "job": "\xff"}', id="not UTF-8"),
        param(b'{"attempt": 0, "step": 1, "x": ' + b"[" * 20_000, id="deeply nested"),
        param(b'{"attempt": 0, "step": 1, "failure": {"message": "' + b"x" * 5000 + b'"}}', id="a long text"),
        param(b'{"attempt": 0, "step": 1, "hang": {"ranks": [0, 1]}}', id="more ranks than the job has"),
        param(
            b'{"attempt": 0, "step": 1, "missing": ['
            + b'{"replica":1,"seconds":1},' * 99
            + b'{"replica":1,"seconds":1}]}',
            id="more replicas than the job has",
        ),
    ],
)
async def test_invalid_answer_is_ignored_and_the_next_one_is_read(agents: Agents, answer: bytes) -> None:
    agents.answers["10.0.0.1"] = answer
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)
    assert step(agents) is None

    agents.at_step(4)
    await asyncio.sleep(10)
    assert step(agents) == 4


async def test_hostile_agent_costs_less_than_64_kib() -> None:
    face = "\U0001f600"
    failure = {"message": face * 4096, "at": face * 64, "signal": face * 64, "reason": face * 64}
    missing = [{"replica": 2**30 + number, "seconds": 1e5 + number / 7} for number in range(8)]
    hang = {"ranks": [2**30 + number for number in range(8)], "message": face * 4096}
    body = {"attempt": 0, "step": 2**50, "failure": failure, "missing": missing, "hang": hang}
    answer = json.dumps(body | {"metrics": "x" * 100_000}, ensure_ascii=False).encode()
    agents = Agents()
    agents.answers["10.0.0.1"] = answer
    tracemalloc.start()
    try:
        for number in range(20):
            agents.poller.follow(Key(f"ns-{number}", "j"), "u", 0, "10.0.0.1", ranks=8)
        await asyncio.sleep(5)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await agents.poller.close()

    assert len(agents.news_at) == 20
    assert kept < 20 * 64 * 2**10


@pytest.mark.parametrize(
    ("named", "believed"),
    [
        param({}, True, id="this job"),
        param({"job": None, "jobUid": None, "replica": None}, False, id="no identity"),
        param({"job": None}, False, id="no job"),
        param({"jobUid": None}, False, id="no uid"),
        param({"replica": None}, False, id="no replica"),
        param({"job": "other"}, False, id="another job"),
        param({"jobUid": "v"}, False, id="an earlier job of that name, or one in another namespace"),
        param({"replica": 1}, False, id="another replica"),
    ],
)
async def test_answer_of_another_agent_at_that_address_is_ignored(
    agents: Agents, named: dict[str, object], believed: bool
) -> None:
    agents.at_step(3)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(5)
    agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 9, "rejoin": True, **named}).encode()
    await asyncio.sleep(15)

    progress = agents.poller.last(KEY, "u", 0)
    assert progress is not None
    assert (progress.step, progress.rejoin) == ((9, True) if believed else (3, False))
    assert bool(agents.poller.silence(KEY, "u", 0)) is not believed


async def test_estimate_too_large_for_a_date_is_dropped(agents: Agents) -> None:
    agents.answers["10.0.0.1"] = b'{"attempt": 0, "step": 1, "etaSeconds": 1e300}'
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)
    progress = agents.poller.last(KEY, "u", 0)

    assert progress is not None
    assert progress.eta_s is None


async def test_answer_of_another_attempt_or_job_is_not_used(agents: Agents) -> None:
    agents.at_step(3, attempt=1)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)
    agents.at_step(3)
    await asyncio.sleep(10)

    assert step(agents, attempt=1) is None
    assert agents.poller.last(KEY, "another", 0) is None
    assert step(agents) == 3


async def test_stopped_job_is_not_polled_but_its_last_answer_stays(agents: Agents) -> None:
    agents.at_step(3)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)
    agents.poller.stop(KEY)
    await asyncio.sleep(100)

    assert len(agents.asked) == 1
    assert step(agents) == 3
    agents.poller.forget(KEY)
    assert step(agents) is None


async def test_new_address_is_polled_instead_of_the_old_one(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)
    agents.poller.follow(KEY, "u", 1, "10.0.0.2")
    await asyncio.sleep(1)
    agents.poller.follow(KEY, "u", 1, "10.0.0.2")
    await asyncio.sleep(1)

    assert [address for _, address in agents.asked] == ["10.0.0.1", "10.0.0.2"]
