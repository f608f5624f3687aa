"""The work of one reconcile grows with the pods of the job, not faster; counted in calls, not in seconds."""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

import msgspec
import pytest

from tests.support import big_jobs
from tests.support.big_jobs import JOBS
from tests.support.builders import JobBuilder


class Name(str):
    """A name whose comparisons are Python calls, so that a search through all pods is counted."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True


def calls(given: JobBuilder) -> int:
    """The calls of all functions in one reconcile; a generator counts once per item."""
    s, made = given.snapshot(), 0
    s = replace(s, pods=tuple(msgspec.structs.replace(pod, name=Name(pod.name)) for pod in s.pods))

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        big_jobs.decide(s)
    finally:
        sys.setprofile(before)
    return made


@pytest.mark.parametrize("given", JOBS.values(), ids=JOBS)
def test_work_grows_no_faster_than_the_number_of_pods(given: Callable[[int], JobBuilder]) -> None:
    assert calls(given(160)) <= 4.4 * calls(given(40))


def test_reconcile_of_a_healthy_job_makes_few_calls_per_pod() -> None:
    per_pod = (calls(big_jobs.running(160)) - calls(big_jobs.running(40))) / 120
    assert per_pod <= 80


def test_new_pods_share_what_does_not_differ_between_them() -> None:
    per_pod = (calls(big_jobs.new(160)) - calls(big_jobs.new(40))) / 120
    assert per_pod <= 20


@pytest.mark.parametrize("given", [big_jobs.running, big_jobs.new])
def test_nodes_are_not_searched_once_per_pod(given: Callable[[int, int], JobBuilder]) -> None:
    more_nodes = calls(given(20, 500)) - calls(given(20, 100))
    assert more_nodes <= 10 * 400


def test_a_status_that_is_not_written_is_derived_once() -> None:
    s = big_jobs.running(8).snapshot()
    assert s.after(tuple(s.pods), None) is s
    assert s.after(s.pods[1:], None).current.keys() == set(range(1, 8))
