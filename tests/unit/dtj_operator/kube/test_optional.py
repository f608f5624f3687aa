"""A kind that the API server need not serve is used once its objects are in the cache."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dtj_operator.kube import pod_groups, workloads
from dtj_operator.kube.optional import Feature
from dtj_operator.kube.pod_groups import Gangs

param = pytest.param

NO_RIGHT = "the operator may not read Workloads"


def feature() -> Feature:
    return Feature("workloads", ["v1"], not_served="not served", forbidden=NO_RIGHT)


def reflector(*, synced: bool) -> Any:
    """One that has tried to list, with or without the right to."""
    found = SimpleNamespace(tried=asyncio.Event(), synced=asyncio.Event())
    found.tried.set()
    if synced:
        found.synced.set()
    return found


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        param(feature, NO_RIGHT, id="any kind"),
        param(workloads.kueue, workloads.FORBIDDEN, id="Workloads"),
        param(lambda: Gangs(lambda: 0.0), pod_groups.FORBIDDEN, id="PodGroups"),
    ],
)
async def test_missing_right_for_one_namespace_is_the_problem_until_it_is_given(
    made: Callable[[], Feature], problem: str
) -> None:
    kind, without = made(), reflector(synced=False)
    task = asyncio.create_task(kind.until_cached("v1", [reflector(synced=True), without]))
    await asyncio.wait_for(kind.settled.wait(), 60)
    assert (kind.api_version, kind.problem) == ("", problem)

    without.synced.set()
    await asyncio.wait_for(task, 60)
    assert (kind.api_version, kind.problem) == ("v1", "")


async def test_jobs_wait_for_the_first_lists() -> None:
    kind, slow = feature(), reflector(synced=False)
    slow.tried.clear()
    task = asyncio.create_task(kind.until_cached("v1", [slow]))
    await asyncio.sleep(0)
    assert not kind.settled.is_set()
    assert kind.problem == "not served"

    slow.synced.set()
    slow.tried.set()
    await asyncio.wait_for(task, 60)
    assert kind.settled.is_set()
    assert (kind.api_version, kind.problem) == ("v1", "")
