"""The benchmark of gangs: what counts as whole and as partly placed, and its plan of faults."""

from typing import Any, cast

import pytest

from dtj_operator.model import names
from tests.bench.gang_pairs import FAULTS_A_JOB, SCOPES, Outcome, Partial, Spells, draw, row
from tests.bench.gang_rig import Pool, State
from tests.integration.api import Api
from tests.integration.kubelet import Kubelet

param = pytest.param
Json = dict[str, Any]


def pod(phase: str, *, placed: bool = True, deleted: bool = False, attempt: int = 0) -> Json:
    meta = {"deletionTimestamp": "now"} if deleted else {}
    return {
        "metadata": {"labels": {names.ATTEMPT: str(attempt)}, **meta},
        "spec": {"nodeName": "n"} if placed else {},
        "status": {"phase": phase},
    }


RUNS, STARTS, WAITS = pod("Running"), pod("Pending"), pod("Pending", placed=False)
ENDED, FAILED = pod("Succeeded"), pod("Failed")
GOES = pod("Running", deleted=True)


@pytest.mark.parametrize(
    ("pods", "whole", "partial"),
    [
        param([], False, False, id="no pods yet"),
        param([WAITS, WAITS, WAITS], False, False, id="all wait"),
        param([STARTS, STARTS, STARTS], False, False, id="all have a node and start"),
        param([RUNS, RUNS, RUNS], True, False, id="all run"),
        param([RUNS, RUNS, WAITS], False, True, id="one waits"),
        param([RUNS, RUNS], False, True, id="one is not created yet"),
        param([RUNS, RUNS, FAILED], False, True, id="one has failed"),
        param([RUNS, RUNS, GOES], False, True, id="one is being deleted"),
        param([RUNS, RUNS, ENDED], True, False, id="one has succeeded"),
        param([ENDED, ENDED, ENDED], False, False, id="all have succeeded"),
        param([GOES, GOES, FAILED], False, False, id="all are going"),
    ],
)
def test_state_of_a_job(pods: list[Json], whole: bool, partial: bool):
    state = state_of(pods)
    assert (state.whole, state.partial) == (whole, partial)


def state_of(pods: list[Json]) -> State:
    kubelet = Kubelet(cast(Api, None), "x")
    kubelet.pods = {f"a-{index}": each for index, each in enumerate(pods)}
    return Pool(api=cast(Api, None), kubelet=kubelet, name="x").state("a", 3)


SECOND = pod("Running", attempt=1)
SECOND_WAITS = pod("Pending", placed=False, attempt=1)


@pytest.mark.parametrize(
    ("moments", "starting", "replacing"),
    [
        param({0: [RUNS, WAITS, WAITS], 6: [RUNS, RUNS, WAITS]}, (1, 6), (0, 0), id="starts in part"),
        param({0: [RUNS, RUNS, WAITS], 4: [RUNS, RUNS, RUNS]}, (0, 0), (0, 0), id="is complete in time"),
        param(
            {0: [STARTS, STARTS, STARTS], 1: [RUNS, RUNS, FAILED], 9: [RUNS, RUNS, WAITS], 10: [RUNS] * 3},
            (0, 0),
            (1, 8),
            id="lacks one of its pods",
        ),
        param(
            {0: [RUNS, WAITS, WAITS], 4: [RUNS, RUNS, RUNS], 5: [RUNS, RUNS, WAITS], 9: [RUNS, RUNS, WAITS]},
            (0, 0),
            (0, 4),
            id="two short spells",
        ),
        param(
            {0: [RUNS, RUNS, RUNS], 1: [FAILED, GOES, GOES], 2: [SECOND, SECOND_WAITS], 8: [SECOND, SECOND]},
            (1, 6),
            (0, 0),
            id="the next attempt starts in part",
        ),
    ],
)
def test_half_start_and_a_replacement_are_counted_apart(
    moments: dict[int, list[Json]], starting: tuple[int, int], replacing: tuple[int, int]
):
    seen = Outcome()
    spells = Spells(seen)
    for at, pods in moments.items():
        spells.see(state_of(pods), at)
    found = [(each.jobs, each.longest_s) for each in (seen.starting, seen.replacing)]
    assert found == [starting, replacing]


def test_plans_are_the_same_for_both_sides_and_differ_between_pairs():
    assert draw(1) == draw(1)
    assert len({str(draw(seed)) for seed in range(20)}) > 10
    assert all(len(plan.faults) == FAULTS_A_JOB for plan in draw(1).values())
    assert {plan.scope for seed in range(20) for plan in draw(seed).values()} == set(SCOPES)


def test_row_of_the_table():
    total = Outcome()
    for found in (
        Outcome(stuck=1, starting=Partial(jobs=2, longest_s=3.14)),
        Outcome(starting=Partial(longest_s=1.0), replacing=Partial(jobs=3, longest_s=7.0)),
    ):
        found.faults["crash", "Job"] += 2
        total.add(found)
    assert row("gangs", 2, total) == ["gangs", 2, 0, 4, 1, 2, "3.1", 3, "7.0"]
