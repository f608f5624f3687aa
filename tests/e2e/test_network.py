"""Packets between pods are dropped while Kubernetes reports every pod and node as healthy."""

from __future__ import annotations

import contextlib

import pytest

from tests.cluster import faults
from tests.cluster.kind import Cluster
from tests.e2e.conftest import no_other_placement, workload_job
from tests.e2e.test_healing import uids
from tests.e2e.test_recovery import steps_done
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import phase

CUT = {"first": 0, "last": 3}  # job -> the replica that its other replicas lose


def spread_job(name: str) -> Json:
    """Four replicas, two on each worker."""
    manifest = workload_job(name, "--steps=100000", "--step-s=0.5", recovery={"scope": "Replica"})
    manifest["spec"]["replicas"] = 4
    manifest["spec"]["template"]["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "nodeTaintsPolicy": "Honor",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"dtj.dev/job-name": name}},
        }
    ]
    return manifest


@pytest.mark.long(190)
def test_isolated_replica_is_replaced(cluster: Cluster, kubectl: Kubectl):
    """Only the operator still reaches all pods; meanwhile the other replicas keep their state in memory."""
    with no_other_placement():
        for name in CUT:
            kubectl.apply(spread_job(name))
        for name in CUT:
            kubectl.until("dtj", name, phase("Running"))
    for name in CUT:
        kubectl.follow(f"{name}-0", "did step 3 ")
    before = {name: uids(kubectl, name) for name in CUT}

    with contextlib.ExitStack() as cuts:
        for name, lone in CUT.items():
            pods = [kubectl.get("pod", f"{name}-{index}") or {} for index in range(4)]
            cuts.enter_context(faults.cut_off(cluster, pods.pop(lone), pods))
        jobs = {name: kubectl.until("dtj", name, recovered, within_s=300) for name in CUT}

    for name, lone in CUT.items():
        kubectl.follow(f"{name}-{lone}", "did step ")
        status = jobs[name]["status"]
        assert (status["attempt"], status["restarts"]["counted"]) == (0, 1)
        assert (status["failure"]["reason"], status["failure"]["replica"]) == ("PeerLost", lone)
        after = uids(kubectl, name)
        assert [pod for pod in after if after[pod] != before[name][pod]] == [f"{name}-{lone}"]
        assert min(steps_done(kubectl, f"{name}-{lone}")) > 3, "the new pod does not start at step 1"
        done = steps_done(kubectl, f"{name}-1")
        assert done == list(range(1, len(done) + 1)), "no step was done twice"


def recovered(job: Json) -> bool:
    """Whether the job runs again after a restart of any kind."""
    return phase("Running")(job) and job["status"]["restarts"]["total"] > 0
