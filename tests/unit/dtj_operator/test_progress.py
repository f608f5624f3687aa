"""What agents answer, on fake time: how often they are asked, what is believed, who is told."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from dtj_operator.names import Key
from dtj_operator.plan.snapshot import Incident, Ledger, Missing, Straggler
from dtj_operator.progress import Poller

param = pytest.param
pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]
KEY = Key("ns", "j")


class Agents:
    """A pod network: answers by address, and when who was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.asked: list[tuple[float, str]] = []
        self.told: list[float] = []
        self.poller = Poller(self, self._tell, lambda: 1e9 + now(), poll_s=10, progress_s=60)

    async def __call__(self, address: str) -> bytes:
        self.asked.append((now(), address))
        if address not in self.answers:
            raise ConnectionRefusedError(address)
        return self.answers[address]

    def _tell(self, _: Key) -> None:
        self.told.append(now())

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


async def test_a_running_job_is_asked_every_ten_seconds(agents: Agents) -> None:
    agents.at_step(3)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(35)

    assert [round(at) for at, _ in agents.asked] == [0, 10, 20, 30]
    assert step(agents) == 3


async def test_news_are_told_at_once_and_then_once_a_minute(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    for number in range(14):
        agents.at_step(number)
        await asyncio.sleep(10)

    assert [round(at) for at in agents.told] == [0, 60, 120]


async def test_what_the_next_fault_is_judged_by_is_news_at_once(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    for more in ({}, {"rejoin": True}, {"rejoin": True, "restarts": {"inPlace": 1}}, {"rejoin": True}):
        agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 1, **more}).encode()
        await asyncio.sleep(10)

    assert [round(at) for at in agents.told] == [0, 10, 20, 30]


async def test_heals_and_the_ledger_are_read(agents: Agents) -> None:
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
    ("told", "slowest"),
    [
        param({"slowestRank": 3}, Straggler(rank=3), id="an agent that says only who"),
        param(
            {"slowestRank": 3, "slowest": {"rank": 3, "replica": 1, "ratio": 2.1}},
            Straggler(rank=3, replica=1, ratio=2.1),
            id="and where, and how slow",
        ),
        param({"slowestRank": None, "slowest": None}, None, id="all keep step"),
    ],
)
async def test_the_rank_that_the_others_wait_for_is_read(
    agents: Agents, told: dict[str, object], slowest: Straggler | None
) -> None:
    agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, **told}).encode()
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)

    progress = agents.poller.last(KEY, "u", 0)
    assert progress is not None
    assert progress.slowest == slowest


async def test_who_holds_the_others_up_is_news_at_once_and_how_much_is_none(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    slow = {"rank": 1, "replica": 1, "ratio": 2.0}
    hang = {"ranks": [1], "message": "no step for 33 s"}
    for more in ({}, {"slowest": slow}, {"slowest": slow | {"ratio": 2.2}}, {"hang": hang}, {}):
        agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 1, **more}).encode()
        await asyncio.sleep(10)

    assert [round(at) for at in agents.told] == [0, 10, 30, 40]


async def test_an_agent_that_falls_silent_accuses_nobody_for_ever(agents: Agents) -> None:
    slow = {"rank": 1, "replica": 1, "ratio": 2.0}
    agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 4, "slowest": slow}).encode()
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(5)
    agents.answers.clear()
    await asyncio.sleep(200)

    progress = agents.poller.last(KEY, "u", 0)
    assert progress is not None
    assert (progress.step, progress.slowest) == (4, None)
    assert [round(at) for at in agents.told] == [0, 15, 35]


@pytest.mark.parametrize("answers", [param(True, id="it answers"), param(False, id="it never has")])
async def test_only_an_agent_that_has_answered_can_fall_silent(agents: Agents, answers: bool) -> None:
    if answers:
        agents.at_step(3)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(5)
    agents.answers.clear()
    await asyncio.sleep(6)
    assert not agents.poller.silent(KEY, "u", 0), "one question may get lost"
    await asyncio.sleep(10)
    assert agents.poller.silent(KEY, "u", 0) is answers
    assert not agents.poller.silent(KEY, "another", 0)
    assert not agents.poller.silent(KEY, "u", 1)

    agents.at_step(4)
    await asyncio.sleep(60)
    assert not agents.poller.silent(KEY, "u", 0)


async def test_what_answered_another_process_can_fall_silent_too(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1", has_answered=True)
    await asyncio.sleep(6)

    assert agents.poller.silent(KEY, "u", 0)
    assert [round(at) for at in agents.told] == [5]


async def test_long_silence_says_nothing_of_a_node(agents: Agents) -> None:
    agents.at_step(3)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(5)
    agents.answers.clear()
    await asyncio.sleep(170)
    assert agents.poller.silent(KEY, "u", 0), (
        "however often it was asked since: Kubernetes may not have spoken yet"
    )
    await asyncio.sleep(30)

    assert not agents.poller.silent(KEY, "u", 0)


async def test_whoever_waits_for_a_replica_is_asked_more_often_and_tells_at_once(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    for missing in ([], [{"replica": 1, "seconds": 21.5}], [{"replica": 1, "seconds": 31.5}], None):
        agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 1, "missing": missing}).encode()
        await asyncio.sleep(10)

    progress = agents.poller.last(KEY, "u", 0)
    assert progress is not None
    assert progress.missing == ()
    assert [round(at) for at, _ in agents.asked] == [0, 10, 15, 20, 25, 30]
    assert [round(at) for at in agents.told] == [0, 10, 30]


async def test_replica_that_is_missing_long_enough_to_be_replaced_is_news(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    for seconds in (113.0, 118.0, 123.0, 128.0):
        missing = [{"replica": 1, "seconds": seconds}]
        agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 1, "missing": missing}).encode()
        await asyncio.sleep(5)

    assert [round(at) for at in agents.told] == [0, 10]


async def test_replica_that_is_missing_for_minutes_is_no_hurry(agents: Agents) -> None:
    missing = [{"replica": 1, "seconds": 200.0}]
    agents.answers["10.0.0.1"] = json.dumps({"attempt": 0, "step": 1, "missing": missing}).encode()
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(25)

    progress = agents.poller.last(KEY, "u", 0)
    assert progress is not None
    assert progress.missing == (Missing(replica=1, seconds=200.0),)
    assert [round(at) for at, _ in agents.asked] == [0, 10, 20]


async def test_a_step_that_does_not_move_is_no_news(agents: Agents) -> None:
    agents.at_step(3)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(300)

    assert len(agents.told) == 1


async def test_where_nobody_answers_it_is_asked_more_rarely(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(600)

    assert len(agents.asked) < 20
    assert step(agents) is None


@pytest.mark.parametrize(
    "answer",
    [
        param(b"<html>", id="no JSON"),
        param(b'{"step": 1}', id="no attempt"),
        param(b'{"attempt": 0, "step": -1}', id="a negative step"),
        param(b'{"attempt": 0, "step": 99999999999999999999}', id="a step that no API server stores"),
        param(b'{"attempt": 0, "step": "1"}', id="a string"),
        param(b'{"attempt": 0, "step": 1, "restarts": {"inPlace": 4000000000}}', id="heals beyond belief"),
        param(b'{"attempt": 0, "step": 1, "slowest": {"rank": -1}}', id="no rank"),
        param(b'{"attempt": 0, "step": 1, "ledger": {"lost": -1}}', id="negative seconds"),
        param(b'{"attempt": 0, "step": 1, "missing": [1]}', id="a replica that is no object"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_no_answer(agents: Agents, answer: bytes) -> None:
    agents.answers["10.0.0.1"] = answer
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)

    assert step(agents) is None


@pytest.mark.parametrize(
    ("named", "believed"),
    [
        param({"job": "j", "replica": 0}, True, id="this one"),
        param({"job": "j", "namespace": "ns", "replica": 0}, True, id="this one, and where it is"),
        param({"job": None, "namespace": None, "replica": None}, True, id="nobody"),
        param({"job": "other", "replica": 0}, False, id="another job"),
        param({"job": "j", "namespace": "other", "replica": 0}, False, id="one of that name elsewhere"),
        param({"job": "j", "replica": 1}, False, id="another replica"),
    ],
)
async def test_the_answer_of_somebody_else_at_that_address_is_no_answer(
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
    assert agents.poller.silent(KEY, "u", 0) is not believed


async def test_an_estimate_that_no_date_holds_is_left_out(agents: Agents) -> None:
    agents.answers["10.0.0.1"] = b'{"attempt": 0, "step": 1, "etaSeconds": 1e300}'
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)
    progress = agents.poller.last(KEY, "u", 0)

    assert progress is not None
    assert progress.eta_s is None


async def test_the_answer_of_another_attempt_or_job_is_not_this_ones(agents: Agents) -> None:
    agents.at_step(3, attempt=1)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)
    agents.at_step(3)
    await asyncio.sleep(10)

    assert step(agents, attempt=1) is None
    assert agents.poller.last(KEY, "another", 0) is None
    assert step(agents) == 3


async def test_a_job_that_is_left_is_asked_no_more_but_its_last_answer_stays(agents: Agents) -> None:
    agents.at_step(3)
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)
    agents.poller.stop(KEY)
    await asyncio.sleep(100)

    assert len(agents.asked) == 1
    assert step(agents) == 3
    agents.poller.forget(KEY)
    assert step(agents) is None


async def test_a_new_address_is_asked_instead_of_the_old_one(agents: Agents) -> None:
    agents.poller.follow(KEY, "u", 0, "10.0.0.1")
    await asyncio.sleep(1)
    agents.poller.follow(KEY, "u", 1, "10.0.0.2")
    await asyncio.sleep(1)
    agents.poller.follow(KEY, "u", 1, "10.0.0.2")
    await asyncio.sleep(1)

    assert [address for _, address in agents.asked] == ["10.0.0.1", "10.0.0.2"]
