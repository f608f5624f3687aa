"""Ranks fail: restarts, resuming from a checkpoint, blame, and a spent restart budget."""

from __future__ import annotations

import re

from tests.e2e.conftest import workload_job
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import condition, phase


def steps_done(kubectl: Kubectl, pod: str) -> list[int]:
    """Return the steps in the log of a pod's current container, in order."""
    return [int(number) for number in re.findall(r"did step (\d+) ", kubectl("logs", pod))]


def test_crash_of_all_ranks_restarts_them_in_place_from_the_checkpoint(kubectl: Kubectl, runs: Json):
    kubectl.apply(
        workload_job(
            "crash", "--crash=exit", "--crash-at=17", "--crash-rank=-1", "--steps=40", checkpoint=runs
        )
    )

    job = kubectl.until("dtj", "crash", condition("Complete"), within_s=300)

    assert job["status"]["attempt"] == 0
    for pod in ("crash-0", "crash-1"):
        # Saved every 5 steps and killed before step 18: the second generation resumes after step 15.
        assert steps_done(kubectl, pod) == [*range(1, 18), *range(16, 41)]


def test_spent_budget_fails_the_job_and_names_rank_and_traceback(kubectl: Kubectl):
    spec = {"recovery": {"maxRestarts": 1, "backoffSeconds": 1}}
    kubectl.apply(workload_job("hopeless", "--crash=raise", "--crash-at=3", "--crash-lives=9", **spec))

    job = kubectl.until("dtj", "hopeless", condition("Failed", reason="RestartBudgetSpent"), within_s=300)

    assert job["status"]["phase"] == "Failed"
    assert job["status"]["restarts"]["counted"] == 1
    failure = job["status"]["failure"]
    named = failure["rank"], failure["replica"], failure["reason"], failure["exitCode"]
    assert named == (1, 1, "Exception", 1), "whichever pod ended first"
    assert "RuntimeError: ordered failure of rank 1" in failure["message"]
    assert failure["node"] == kubectl.get("pod", "hopeless-1")["spec"]["nodeName"]  # type: ignore[index]


def test_bad_recipe_fails_the_job_without_a_restart(kubectl: Kubectl):
    manifest = workload_job("typo")
    manifest["spec"]["template"]["spec"]["containers"][0]["args"] = ["train", "dtj.recipes.digitz:recipe"]
    kubectl.apply(manifest)

    job = kubectl.until("dtj", "typo", phase("Failed"))

    assert condition("Failed", reason="RecoveryRule")(job)
    assert job["status"]["restarts"]["total"] == 0
    assert job["status"]["failure"]["exitCode"] == 78
    assert "dtj.recipes.digitz" in job["status"]["failure"]["message"]
