"""Faults on real kubelets: how long until all ranks train again, and where the time goes.

One kind of fault after the other (DTJ_RECOVERY_KINDS chooses), each with a table of its own. The job of two
replicas with one rank each has no checkpoint: what goes on comes from the survivor's memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from tests.bench import report
from tests.bench.recovery_jobs import REPLICAS, job, namespace
from tests.bench.recovery_times import HANG, NODE, POD, RANK, STAGES, Line, marks, parse, percentile, stages
from tests.bench.recovery_watch import Watch
from tests.cluster import faults, install, kind
from tests.cluster.kind import Cluster
from tests.support.kubectl import Kubectl

NAMESPACE = "bench-recovery"
KINDS = tuple(os.environ.get("DTJ_RECOVERY_KINDS", "rank pod pod0 hang node").split())
FAULTS = int(os.environ.get("DTJ_RECOVERY_FAULTS", "20"))  # of each kind, at least
A_JOB = 5  # faults that one job lives through
AT_ONCE = {"hang": 4, "node": 4}  # jobs beside each other, where waiting is most of it
NODE_LOST_S = 5
_WITHIN_S = {RANK: 60.0, POD: 120.0, HANG: 180.0, NODE: 300.0}
_LOOK_S = {RANK: 0.5, POD: 0.5, HANG: 3.0, NODE: 3.0}  # what is measured comes from time stamps
_QUIET_S = 2.0  # of training between two faults


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fault. number: which of its job, from 1; spent: seconds by stage, and `all`; empty if stuck."""

    number: int
    spent: dict[str, float]


class Job:
    """A running job and what can be done to it."""

    def __init__(self, cluster: Cluster, kubectl: Kubectl, watch: Watch, name: str) -> None:
        self._cluster, self._kubectl, self._watch, self.name = cluster, kubectl, watch, name
        self.pods = [f"{name}-{index}" for index in range(REPLICAS)]
        kubectl.apply(job(name, nodes=cluster.workers, nodeLostSeconds=NODE_LOST_S))

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
            logs = {pod: self._log(pod, fault) for pod in self.pods}
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
        self._kubectl("delete", "dtj", self.name, "--wait=false")

    def _log(self, pod: str, since: float) -> list[Line]:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since - 1))
        return parse(self._kubectl("logs", pod, "--timestamps", f"--since-time={stamp}", check=False))


def ranks(job: Job, number: int, name: str, kind: str) -> Trial:
    """Signal the rank of one pod after the other."""
    victim = job.pods[number % REPLICAS]
    before = job.uid(victim)
    return Trial(number=number, spent=job.recover(kind, victim, job.signal(victim, name), before))


def deleted(job: Job, number: int, index: int) -> Trial:
    """Delete the pod of an index."""
    victim = job.pods[index]
    before = job.uid(victim)
    return Trial(number=number, spent=job.recover(POD, victim, job.delete(victim), before))


def one_after_the_other(
    make: Callable[[str], Job], name: str, act: Callable[[Job, int], Trial]
) -> list[Trial]:
    """A job with its faults."""
    job, found = make(name), []
    try:
        for number in range(1, A_JOB + 1):
            job.settle()
            found.append(act(job, number))
            spent = " ".join(f"{stage} {seconds:.2f}" for stage, seconds in found[-1].spent.items())
            print(f"{name} {number}: {spent or 'does not train again'}", flush=True)
            if not spent:
                break
    finally:
        job.delete_job()
    return found


def lost_nodes(cluster: Cluster, make: Callable[[str], Job]) -> list[Trial]:
    """Several jobs with a pod on the same node, which loses power; new jobs once it is back."""
    found: list[Trial] = []
    while len(found) < FAULTS:
        some = [make(f"node-{len(found) + number}") for number in range(AT_ONCE["node"])]
        try:
            for each in some:
                each.settle()
            found += _lose(cluster, some)
        finally:
            for each in some:
                each.delete_job()
    return found


def _lose(cluster: Cluster, jobs: Sequence[Job]) -> list[Trial]:
    node = cluster.workers[1]
    hit = [(job, pod, job.uid(pod)) for job in jobs for pod in job.pods if job.node(pod) == node]
    with ThreadPoolExecutor(len(hit)) as pool:
        fault = time.time()
        with faults.without_power(cluster, node):
            waits = [pool.submit(job.recover, NODE, pod, fault, uid, node) for job, pod, uid in hit]
            found = [Trial(number=1, spent=wait.result()) for wait in waits]
    for trial in found:
        print("node", trial.spent, flush=True)
    return found


def text(trials: Sequence[Trial]) -> str:
    """Return one table: stages in columns."""
    healed = [trial for trial in trials if trial.spent]
    shown = [stage for stage in STAGES if any(stage in trial.spent for trial in trials)]
    rows = []
    fifth = [trial for trial in healed if trial.number == A_JOB]
    for name, some, share in (
        ("p50", healed, 0.5),
        ("p99", healed, 0.99),
        ("p50 of those that were the fifth of their job", fifth, 0.5),
    ):
        if some:
            cells = [_cell([t.spent[s] for t in some if s in t.spent], share) for s in [*shown, "all"]]
            rows.append([name, len(some), *cells])
    stuck = len(trials) - len(healed)
    failed = f"\n\n{stuck} of {len(trials)} never trained again." if stuck else ""
    return report.table(["seconds", "faults", *shown, "**all**"], rows) + failed


def _cell(samples: Sequence[float], share: float) -> str:
    return f"{percentile(samples, share):.2f}" if samples else ""


def main() -> None:
    """Measure the kinds that were asked for; write a section for each."""
    root = install.with_operator()
    cluster = kind.create()
    jobs = -(-FAULTS // A_JOB)
    with namespace(root, NAMESPACE) as kubectl, Watch(kubectl) as watch:
        make = partial(Job, cluster, kubectl, watch)
        acts: dict[str, Callable[[Job, int], Trial]] = {
            "rank": partial(ranks, name="KILL", kind=RANK),
            "hang": partial(ranks, name="STOP", kind=HANG),
            "pod": partial(deleted, index=1),
            "pod0": partial(deleted, index=0),
        }
        for which in KINDS:
            if which == "node":
                found = lost_nodes(cluster, make)
            else:
                act = acts[which]
                with ThreadPoolExecutor(AT_ONCE.get(which, 1)) as pool:
                    begun = [
                        pool.submit(one_after_the_other, make, f"{which}-{number}", act)
                        for number in range(jobs)
                    ]
                    found = [trial for each in begun for trial in each.result()]
            report.write(f"recovery {which}", text(found))
