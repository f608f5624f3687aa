"""Turns on fake time: the rate of all keys, the interval of one, and the order."""

import asyncio

import pytest

from dtj_operator.engine import turns
from dtj_operator.engine.turns import Turns

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]


class Given:
    """Turns that keys had; each is done at once unless `busy`."""

    def __init__(self, **options: float) -> None:
        self.had: list[tuple[float, str]] = []
        self.busy = False
        self.turns: Turns[str] = Turns(self._on_turn, **{"per_second": 2, "at_least_s": 60} | options)

    def _on_turn(self, key: str) -> None:
        self.had.append((asyncio.get_running_loop().time(), key))
        if not self.busy:
            self.turns.done(key)

    def ask(self, keys: str) -> None:
        for key in keys:
            self.turns.ask(key)


async def test_turns_are_given_in_order_and_at_the_rate() -> None:
    given = Given()
    given.ask("cabcab")
    await asyncio.sleep(10)

    assert given.had == [(0, "c"), (0.5, "a"), (1, "b")]


async def test_loop_that_is_late_gives_no_fewer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(turns, "_now", lambda: loop.time() + 0.3)
    given = Given()
    given.ask("abcd")
    await asyncio.sleep(10)

    assert [round(at, 3) for at, _ in given.had] == [0.3, 0.8, 1.3, 1.8]


async def test_key_that_asks_too_early_has_to_ask_again() -> None:
    given = Given(early_s=5)
    for _ in range(7):
        given.ask("a")
        await asyncio.sleep(14)

    assert [at for at, _ in given.had] == [0, 56]


async def test_interval_grows_with_the_number_of_keys() -> None:
    given = Given(at_least_s=1)
    given.ask("abcdefgh")

    assert given.turns.interval_s == 4
    given.turns.leave("a")
    assert given.turns.interval_s == 3.5


async def test_turn_lasts_until_it_is_done() -> None:
    given = Given(at_least_s=1)
    given.busy = True
    given.ask("a")
    await asyncio.sleep(10)
    given.ask("a")
    await asyncio.sleep(10)
    assert given.turns.has("a")
    assert len(given.had) == 1

    given.turns.done("a")
    assert not given.turns.has("a")
    await asyncio.sleep(1)
    given.ask("a")
    await asyncio.sleep(1)
    assert len(given.had) == 2


async def test_key_that_is_done_before_its_turn_or_has_left_gets_none() -> None:
    given = Given()
    given.ask("abcd")
    given.turns.done("b")
    given.turns.leave("c")
    await asyncio.sleep(10)

    assert given.had == [(0, "a"), (0.5, "d")], "nor does it use up the time of the others"


async def test_no_turn_is_given_after_close() -> None:
    given = Given()
    given.ask("abc")
    given.turns.close()
    await asyncio.sleep(10)

    assert given.had == []
