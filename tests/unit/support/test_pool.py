from __future__ import annotations

import threading

import pytest

from tests.support.pool import Pool


def test_interruption_waits_for_the_running_call_and_drops_those_that_wait():
    began, may_end, made = threading.Event(), threading.Event(), []

    def call(number: int) -> None:
        began.set()
        may_end.wait()
        made.append(number)

    def interrupted() -> None:
        with Pool(1) as pool:
            for number in range(3):
                pool.submit(call, number)
            began.wait()
            threading.Timer(0.01, may_end.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert made == [0]
