"""The queue on fake time: when an added key is taken, and that a key is never held twice."""

import asyncio
from random import Random

import pytest

from dtj_operator.engine.workqueue import WorkQueue

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]


@pytest.fixture
def queue() -> WorkQueue[str]:
    return WorkQueue(Random(1))


async def next_key(queue: WorkQueue[str]) -> str:
    async with queue.take() as (key, _):
        return key


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_queued_key_is_not_added_again(queue: WorkQueue[str]) -> None:
    for _ in range(1000):
        queue.add("a")

    assert await next_key(queue) == "a"
    assert len(queue) == 0


async def test_keys_are_taken_in_the_order_in_which_they_were_added(queue: WorkQueue[str]) -> None:
    for key in "cab":
        queue.add(key)

    assert [await next_key(queue) for _ in range(3)] == ["c", "a", "b"]


async def test_key_is_never_held_twice_and_is_queued_again_if_added_meanwhile(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    async with queue.take():
        queue.add("a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await next_key(queue)

    assert await next_key(queue) == "a"


async def test_key_whose_worker_failed_can_be_taken_again(queue: WorkQueue[str]) -> None:
    queue.add("a")
    with pytest.raises(ValueError, match="boom"):
        async with queue.take():
            raise ValueError("boom")
    queue.add("a")

    assert await next_key(queue) == "a"


@pytest.mark.parametrize(("first", "second"), [(5, 2), (2, 5)])
async def test_of_several_delays_the_earliest_counts(
    queue: WorkQueue[str], first: float, second: float
) -> None:
    queue.add_after("a", first)
    queue.add_after("a", second)
    await next_key(queue)
    waited = now()

    assert waited == pytest.approx(2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await next_key(queue)


async def test_back_off_doubles_up_to_a_limit_with_jitter_and_a_success_resets_it(
    queue: WorkQueue[str],
) -> None:
    delays = [queue.retry("a") for _ in range(12)]
    queue.reset_backoff("a")

    for failures, delay in enumerate(delays):
        expected = min(60.0, 0.2 * 2**failures)
        assert 0.8 * expected <= delay <= 1.2 * expected
    assert len(set(delays)) == len(delays), "jitter makes all of them different"
    assert queue.retry("a") < 0.3


async def test_back_off_is_at_least_what_the_server_asked_for(queue: WorkQueue[str]) -> None:
    assert queue.retry("a", at_least_s=30) == 30
    await next_key(queue)

    assert now() == pytest.approx(30)


async def test_key_that_failed_yields_to_urgent_keys_for_as_long_as_its_back_off(
    queue: WorkQueue[str],
) -> None:
    delay = queue.retry("failed", at_least_s=30)
    await asyncio.sleep(delay + 29)
    queue.add("urgent")
    assert [await next_key(queue) for _ in range(2)] == ["urgent", "failed"]

    queue.retry("failed", at_least_s=30)
    await asyncio.sleep(delay + 31)
    queue.add("urgent")
    assert [await next_key(queue) for _ in range(2)] == ["failed", "urgent"]


async def test_no_key_is_added_after_close(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 1)
    queue.close()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(100):
            await next_key(queue)


async def test_patient_key_yields_to_urgent_keys(queue: WorkQueue[str]) -> None:
    queue.add("patient", patience_s=2)
    queue.add("urgent")

    assert [await next_key(queue) for _ in range(2)] == ["urgent", "patient"]


async def test_patient_key_does_not_wait_forever(queue: WorkQueue[str]) -> None:
    queue.add("patient", patience_s=2)
    await asyncio.sleep(3)
    queue.add("urgent")

    assert [await next_key(queue) for _ in range(2)] == ["patient", "urgent"]


async def test_patient_key_is_taken_at_once_if_no_key_is_urgent(queue: WorkQueue[str]) -> None:
    began = now()
    queue.add("patient", patience_s=2)

    assert await next_key(queue) == "patient"
    assert now() == began


async def test_urgent_add_ends_the_patience_of_a_key_and_it_is_taken_once(queue: WorkQueue[str]) -> None:
    queue.add("a", patience_s=2)
    queue.add("b", patience_s=1)
    queue.add("a")

    assert [await next_key(queue) for _ in range(2)] == ["a", "b"]
    assert len(queue) == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await next_key(queue)


async def test_key_keeps_its_patience_while_a_worker_holds_it(queue: WorkQueue[str]) -> None:
    queue.add("a")
    async with queue.take():
        queue.add("a", patience_s=2)
        queue.add("b")

    assert [await next_key(queue) for _ in range(2)] == ["b", "a"]


@pytest.mark.parametrize(("b_until", "order"), [(2, ["b", "a"]), (4, ["a", "b"])])
async def test_of_several_delays_the_earliest_time_and_the_earliest_end_of_patience_count(
    queue: WorkQueue[str], b_until: float, order: list[str]
) -> None:
    queue.add_after("a", 3)  # its patience ends at 3
    queue.add_after("a", 1, patience_s=5)
    await asyncio.sleep(1)
    queue.add("b", patience_s=b_until - 1)

    assert [await next_key(queue) for _ in range(2)] == order


async def test_keys_of_a_slow_group_leave_workers_for_others() -> None:
    queue: WorkQueue[str] = WorkQueue(Random(1), workers=4, group_of=lambda key: key[0])
    done, taken = asyncio.Event(), list[str]()

    async def work() -> None:
        while True:
            async with queue.take() as (key, _):
                taken.append(key)
                if key[0] == "s":
                    await done.wait()

    workers = [asyncio.create_task(work()) for _ in range(4)]
    for number in range(6):
        queue.add(f"s{number}")
    queue.add("s4")  # no second place in the queue
    await asyncio.sleep(1)
    for key in ("a1", "b1", "a2"):
        queue.add(key)
    await asyncio.sleep(1)
    slow, others = taken[:2], taken[2:]
    done.set()
    await asyncio.sleep(1)
    for worker in workers:
        worker.cancel()

    assert (slow, others) == (["s0", "s1"], ["a1", "b1", "a2"])
    assert taken[5:] == ["s2", "s3", "s4", "s5"]
    assert len(queue) == 0


async def test_key_that_becomes_urgent_while_its_group_has_its_share_is_taken_first_and_once() -> None:
    queue: WorkQueue[str] = WorkQueue(Random(1), workers=2, group_of=lambda key: key[0])
    for key in ("s0", "s1", "s2"):
        queue.add(key, patience_s=60)
    async with queue.take() as (first, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await next_key(queue)
        queue.add("s2")

    assert [first, await next_key(queue), await next_key(queue)] == ["s0", "s2", "s1"]
    assert len(queue) == 0
