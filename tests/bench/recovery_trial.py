"""A running job whose recovery is measured: injects the fault and measures the time until it trains again."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from typing import Any

from tests.bench.recovery_jobs import REPLICAS, job
from tests.bench.recovery_times import HANG, NODE, POD, RANK, Line, marks, parse, stages
from tests.bench.recovery_watch import Watch
from tests.cluster import faults
from tests.cluster.errors import ClusterError
from tests.cluster.kind import Cluster
from tests.support.kubectl import Kubectl

# Raised if a fault cannot be injected, or if the job is not healthy before it.
TROUBLE = (AssertionError, ClusterError, KeyError, TypeError, subprocess.TimeoutExpired)
_WITHIN_S = {RANK: 60.0, POD: 120.0, HANG: 180.0, NODE: 180.0}
# Polling intervals only; the results come from time stamps.
_LOOK_S = {RANK: 0.5, POD: 0.5, HANG: 3.0, NODE: 3.0}
_QUIET_S = 2.0  # of training between two faults


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fault. number: within its job, from 1; spent: seconds by stage, and `all`; empty if stuck."""

    number: int
    spent: dict[str, float]

    def __str__(self) -> str:
        spent = " ".join(f"{stage} {seconds:.2f}" for stage, seconds in self.spent.items())
        return spent or "does not train again"


class Job:
    """A running job and the faults that can be injected into it."""

    def __init__(
        self, cluster: Cluster, kubectl: Kubectl, watch: Watch, name: str, *args: str, **how: Any
    ) -> None:
        """args, how: further arguments of `recovery_jobs.job`."""
        self._cluster, self._kubectl, self._watch, self.name = cluster, kubectl, watch, name
        self.pods = [f"{name}-{index}" for index in range(REPLICAS)]
        kubectl.apply(job(name, *args, nodes=cluster.workers, **how))

    def settle(self) -> None:
        """Wait until every pod trains and the operator uses scope Replica; then some seconds more."""
        for pod in self.pods:
            self._kubectl.follow(pod, "did step ")
        self._kubectl.until("dtj", self.name, lambda job: job["status"].get("memory", {}).get("rejoins"))
        time.sleep(_QUIET_S)

    def signal(self, pod: str, name: str) -> float:
        """Signal the pod's rank; return the time by the node's own clock."""
        return faults.send(self._cluster, faults.rank(self._cluster, self._kubectl, pod), name)

    def delete(self, pod: str) -> float:
        """Delete the pod immediately, as if it were lost; return the time of the call."""
        at = time.time()
        self._kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
        return at

    def recover(self, kind: str, victim: str, fault: float, before: str, node: str = "") -> dict[str, float]:
        """Wait for the first new step of all ranks; return seconds by stage, empty if there is none in time.

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
        """Uid of the current pod."""
        return str((self._kubectl.get("pod", pod) or {})["metadata"]["uid"])

    def node(self, pod: str) -> str:
        """Node of the pod."""
        return str((self._kubectl.get("pod", pod) or {})["spec"]["nodeName"])

    def delete_job(self) -> None:
        self._kubectl("delete", "dtj", self.name, "--wait=false", check=False)


def log_since(kubectl: Kubectl, pod: str, since: float) -> list[Line]:
    """The pod's log; empty for a pod on a dead node."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since - 1))
    words = ("logs", pod, "--timestamps", f"--since-time={stamp}", "--request-timeout=10s")
    return parse(kubectl(*words, check=False))
