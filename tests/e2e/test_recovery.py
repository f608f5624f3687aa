"""What happens when ranks fail: restarts, resumption from a checkpoint, blame, and the end of the budget."""

from __future__ import annotations

import re

from tests.cluster import faults, kind
from tests.e2e.conftest import workload_job
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import condition, phase


def steps_done(kubectl: Kubectl, pod: str) -> list[int]:
    """Return the steps that the present container of a pod reports in its log, in order."""
    return [int(number) for number in re.findall(r"did step (\d+) ", kubectl("logs", pod))]


def test_crash_of_one_rank_restarts_the_job_from_its_checkpoint(kubectl: Kubectl, runs: Json):
    kubectl.apply(workload_job("crash", "--crash=exit", "--crash-at=17", "--steps=40", checkpoint=runs))

    job = kubectl.until("dtj", "crash", condition("Complete"), within_s=180)

    assert job["status"]["attempt"] == 1
    assert job["status"]["restarts"]["counted"] == 1
    assert job["status"]["failure"]["rank"] == 1
    assert job["status"]["failure"]["exitCode"] == 1
    for pod in ("crash-0", "crash-1"):
        # Saved every 5 steps and killed before step 18: the second attempt begins after step 15.
        assert steps_done(kubectl, pod) == list(range(16, 41))


def test_spent_budget_fails_the_job_and_names_rank_and_traceback(kubectl: Kubectl):
    spec = {"recovery": {"maxRestarts": 1, "backoffSeconds": 1}}
    kubectl.apply(workload_job("hopeless", "--crash=raise", "--crash-at=3", "--crash-attempts=9", **spec))

    job = kubectl.until("dtj", "hopeless", condition("Failed", reason="RestartBudgetSpent"), within_s=180)

    assert job["status"]["phase"] == "Failed"
    assert job["status"]["restarts"]["counted"] == 1
    failure = job["status"]["failure"]
    assert (failure["rank"], failure["reason"]) == (1, "Exception")
    assert "RuntimeError: ordered failure of rank 1" in failure["message"]
    assert failure["node"] == kubectl.get("pod", "hopeless-1")["spec"]["nodeName"]  # type: ignore[index]


def test_killed_rank_is_named_with_its_signal(kubectl: Kubectl):
    kubectl.apply(workload_job("killed", "--steps=200", "--step-s=0.1"))
    kubectl.follow("killed-0", "did step 3 ")

    faults.signal_rank(kind.create(), kubectl, "killed-0", "KILL")

    job = kubectl.until("dtj", "killed", lambda seen: "failure" in seen.get("status", {}), within_s=120)

    failure = job["status"]["failure"]
    assert (failure["rank"], failure["reason"], failure["signal"]) == (0, "Signal", "SIGKILL")
    assert kubectl.until("dtj", "killed", condition("Complete"), within_s=120)


def test_bad_recipe_fails_at_once(kubectl: Kubectl):
    manifest = workload_job("typo")
    manifest["spec"]["template"]["spec"]["containers"][0]["args"] = ["train", "dtj.recipes.digitz:recipe"]
    kubectl.apply(manifest)

    job = kubectl.until("dtj", "typo", phase("Failed"), within_s=120)

    assert condition("Failed", reason="RecoveryRule")(job)
    assert job["status"]["restarts"]["total"] == 0
    assert job["status"]["failure"]["exitCode"] == 78
    assert "dtj.recipes.digitz" in job["status"]["failure"]["message"]
