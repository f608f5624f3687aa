"""The token bucket on fake time."""

import asyncio

import pytest

from dtj_operator.kube.bucket import Bucket

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]


async def test_a_burst_passes_and_then_the_rate_holds() -> None:
    bucket = Bucket(10, burst=5)
    waits = [await bucket.take() for _ in range(15)]

    assert waits[:5] == [0] * 5
    assert asyncio.get_running_loop().time() == pytest.approx(1)


async def test_concurrent_callers_are_spread_over_time() -> None:
    bucket = Bucket(10, burst=1)
    await asyncio.gather(*(bucket.take() for _ in range(21)))

    assert asyncio.get_running_loop().time() == pytest.approx(2)


async def test_bucket_fills_up_to_the_burst() -> None:
    bucket = Bucket(10, burst=3)
    await asyncio.sleep(100)

    assert [await bucket.take() for _ in range(4)] == [0, 0, 0, pytest.approx(0.1)]
