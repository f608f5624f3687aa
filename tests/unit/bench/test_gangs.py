"""The benchmark of gangs: what counts as whole and as partly placed, and its plan of faults."""

from typing import Any, cast

import pytest

from tests.bench.gang_pairs import FAULTS_A_JOB, SCOPES, Outcome, draw, row
from tests.bench.gang_rig import Pool
from tests.integration.api import Api
from tests.integration.kubelet import Kubelet

param = pytest.param
Json = dict[str, Any]


def pod(phase: str, *, placed: bool = True, deleted: bool = False) -> Json:
    meta = {"deletionTimestamp": "now"} if deleted else {}
    return {
        "metadata": meta,
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
    kubelet = Kubelet(cast(Api, None), "x")
    kubelet.pods = {f"a-{index}": each for index, each in enumerate(pods)}
    state = Pool(api=cast(Api, None), kubelet=kubelet, name="x").state("a", 3)
    assert (state.whole, state.partial) == (whole, partial)


def test_plans_are_the_same_for_both_sides_and_differ_between_pairs():
    assert draw(1) == draw(1)
    assert len({str(draw(seed)) for seed in range(20)}) > 10
    assert all(len(plan.faults) == FAULTS_A_JOB for plan in draw(1).values())
    assert {plan.scope for seed in range(20) for plan in draw(seed).values()} == set(SCOPES)


def test_row_of_the_table():
    total = Outcome()
    for found in (Outcome(stuck=1, partial=2, longest_s=3.14), Outcome(longest_s=1.0)):
        found.faults["crash", "Job"] += 2
        total.add(found)
    assert row("gangs", 2, total) == ["gangs", 2, 0, 4, 1, 2, "3.1"]
