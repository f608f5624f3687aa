from __future__ import annotations

import threading

import pytest

from tests.support.pool import Pool


def test_interruption_waits_for_the_running_call_and_drops_those_that_wait():
    began, may_end, made = threading.Event(), threading.Event(), []

    def call(number: int) -> None:
        began.set()
        may_end.wait(60)
        made.append(number)

    def interrupted() -> None:
        with Pool(1) as pool:
            *_, last = [pool.submit(call, number) for number in range(3)]
            last.add_done_callback(lambda _: may_end.set())  # when it is dropped, the running call ends
            began.wait()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert made == [0]
