"""Who gets a place while some groups hold theirs for long."""

import asyncio

import pytest

from dtj_operator.engine.shares import Shares

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(("slow", "held"), [(1, [8]), (2, [6, 5]), (7, [2] * 7), (15, [1] * 15)], ids=str)
async def test_slow_groups_leave_a_place_for_another_group(slow: int, held: list[int]) -> None:
    shares: Shares[int] = Shares(16)
    taken = [0] * slow
    for _ in range(16):
        for group in range(slow):
            taken[group] += shares.try_take(group)

    assert taken == held
    assert shares.try_take(99)


async def test_place_that_is_given_back_goes_to_the_group_with_the_fewest() -> None:
    shares: Shares[str] = Shares(4)
    order: list[str] = []
    fifth = asyncio.Event()

    async def work(group: str, until: asyncio.Event) -> None:
        async with shares.hold(group):
            order.append(group)
            if len(order) == 5:
                fifth.set()
            await until.wait()

    first, last = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for group in ("a", "a", "b", "c"):
            tasks.create_task(work(group, first if group == "c" else last))
            await asyncio.sleep(0)
        for group in ("a", "a", "d"):  # the two of a have waited for longer
            tasks.create_task(work(group, last))
            await asyncio.sleep(0)
        before = list(order)
        first.set()
        await fifth.wait()
        last.set()

    assert before == ["a", "a", "b", "c"]
    assert order[4] == "d"
    assert sorted(order[5:]) == ["a", "a"]


@pytest.mark.parametrize("given", [False, True], ids=["while it waits", "when it has just got its place"])
async def test_cancelled_wait_keeps_no_place(given: bool) -> None:
    shares: Shares[str] = Shares(1)

    async def work() -> None:
        async with shares.hold("b"):
            raise AssertionError("cancelled before")

    assert shares.try_take("a")
    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    if given:
        shares.give_back("a")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if not given:
        shares.give_back("a")

    assert shares.try_take("c")
