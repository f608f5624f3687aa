"""A kind that the API server need not serve is used once its objects are in the cache."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dtj_operator.kube import optional, pod_groups, workloads
from dtj_operator.kube.optional import Feature
from dtj_operator.kube.pod_groups import Gangs

param = pytest.param


def feature() -> Feature:
    return Feature("workloads", ["v1"], not_served="not served", unreadable="unreadable", grant="grant it")


def reflector(*, synced: bool = False, forbidden: bool = False) -> Any:
    """One whose first list has succeeded, was refused, or has not been answered yet."""
    found = SimpleNamespace(tried=asyncio.Event(), synced=asyncio.Event(), forbidden=forbidden, problem="")
    if synced:
        found.synced.set()
    if synced or forbidden:
        found.tried.set()
    return found


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        param(feature, "unreadable: grant it", id="any kind"),
        param(workloads.kueue, f"{workloads.UNREADABLE}: {workloads.GRANT}", id="Workloads"),
        param(lambda: Gangs(lambda: 0.0), f"{pod_groups.UNREADABLE}: {pod_groups.GRANT}", id="PodGroups"),
    ],
)
async def test_missing_right_for_one_namespace_is_the_problem_until_it_is_given(
    made: Callable[[], Feature], problem: str
) -> None:
    kind, without = made(), reflector(forbidden=True)
    task = asyncio.create_task(kind.until_cached("v1", [reflector(synced=True), without]))
    await asyncio.wait_for(kind.settled.wait(), 60)
    assert (kind.api_version, kind.problem) == ("", problem)

    without.synced.set()
    await asyncio.wait_for(task, 60)
    assert (kind.api_version, kind.problem) == ("v1", "")


async def test_jobs_wait_for_the_first_lists() -> None:
    kind, slow = feature(), reflector()
    task = asyncio.create_task(kind.until_cached("v1", [slow]))
    await asyncio.sleep(0)
    assert not kind.settled.is_set()
    assert kind.problem == "not served"

    slow.synced.set()
    slow.tried.set()
    await asyncio.wait_for(task, 60)
    assert kind.settled.is_set()
    assert (kind.api_version, kind.problem) == ("v1", "")


async def test_jobs_do_not_wait_for_a_list_that_keeps_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the conversion webhook of the kind is down."""
    monkeypatch.setattr(optional, "FIRST_LISTS_S", 0.001)
    kind, failing = feature(), reflector()
    task = asyncio.create_task(kind.until_cached("v1", [reflector(synced=True), failing]))
    await asyncio.wait_for(kind.settled.wait(), 60)
    assert (kind.api_version, kind.problem) == ("", "unreadable: no answer yet")
    failing.problem = "500: conversion webhook failed"
    assert kind.problem == "unreadable: 500: conversion webhook failed"

    failing.synced.set()
    await asyncio.wait_for(task, 60)
    assert (kind.api_version, kind.problem) == ("v1", "")
