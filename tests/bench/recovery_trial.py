"""A running job whose recovery is measured: what is done to it, and how long until it trains again."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

from tests.bench.recovery_jobs import REPLICAS, job
from tests.bench.recovery_times import HANG, NODE, POD, RANK, Line, marks, parse, stages
from tests.bench.recovery_watch import Watch
from tests.cluster import faults
from tests.cluster.errors import ClusterError
from tests.cluster.kind import Cluster
from tests.support.kubectl import Kubectl

# What a fault that cannot be injected, or a job that does not get well before it, raises.
TROUBLE = (AssertionError, ClusterError, KeyError, TypeError, subprocess.TimeoutExpired)
_WITHIN_S = {RANK: 60.0, POD: 120.0, HANG: 180.0, NODE: 180.0}
_LOOK_S = {RANK: 0.5, POD: 0.5, HANG: 3.0, NODE: 3.0}  # what is measured comes from time stamps
_QUIET_S = 2.0  # of training between two faults


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fault. number: which of its job, from 1; spent: seconds by stage, and `all`; empty if stuck."""

    number: int
    spent: dict[str, float]

    def __str__(self) -> str:
        spent = " ".join(f"{stage} {seconds:.2f}" for stage, seconds in self.spent.items())
        return spent or "does not train again"


class Job:
    """A running job and what can be done to it."""

    def __init__(self, cluster: Cluster, kubectl: Kubectl, watch: Watch, name: str) -> None:
        self._cluster, self._kubectl, self._watch, self.name = cluster, kubectl, watch, name
        self.pods = [f"{name}-{index}" for index in range(REPLICAS)]
        kubectl.apply(job(name, nodes=cluster.workers))

    def settle(self) -> None:
        """Wait until every pod trains and the operator trusts the agents to heal; then some seconds."""
        for pod in self.pods:
            self._kubectl.follow(pod, "did step ")
        self._kubectl.until("dtj", self.name, lambda job: job["status"].get("recoveryScope") == "Replica")
        time.sleep(_QUIET_S)

    def signal(self, pod: str, name: str) -> float:
        """Signal the pod's rank; the node's own clock says when."""
        return faults.send(self._cluster, faults.rank(self._cluster, self._kubectl, pod), name)

    def delete(self, pod: str) -> float:
        """Take the pod away at once, as one that is lost; the time is that of the call."""
        at = time.time()
        self._kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
        return at

    def recover(self, kind: str, victim: str, fault: float, before: str, node: str = "") -> dict[str, float]:
        """Wait for the first new step of all ranks; seconds by stage, nothing where it does not come in time.

        before  uid of the victim's old pod
        """
        deadline = time.monotonic() + _WITHIN_S[kind]
        while time.monotonic() < deadline:
            time.sleep(_LOOK_S[kind])
            seen = self._watch.replacement(victim, besides=before, node=node, since=fault)
            if kind in {POD, NODE} and seen.running is None:
                continue
            logs = {pod: log_since(self._kubectl, pod, fault) for pod in self.pods}
            found = marks(kind, fault=fault, victim=victim, logs=logs, seen=seen)
            if found:
                return stages(fault, found)
        return {}

    def uid(self, pod: str) -> str:
        """Of the pod as it is now."""
        return str((self._kubectl.get("pod", pod) or {})["metadata"]["uid"])

    def node(self, pod: str) -> str:
        """Where the pod runs."""
        return str((self._kubectl.get("pod", pod) or {})["spec"]["nodeName"])

    def delete_job(self) -> None:
        self._kubectl("delete", "dtj", self.name, "--wait=false", check=False)


def log_since(kubectl: Kubectl, pod: str, since: float) -> list[Line]:
    """What there is of its log; a pod that still stands on a dead node has none to give."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since - 1))
    words = ("logs", pod, "--timestamps", f"--since-time={stamp}", "--request-timeout=10s")
    return parse(kubectl(*words, check=False))
