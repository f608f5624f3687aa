"""A node loses power under several jobs, each of which has one of its two pods there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from tests.bench.recovery_times import NODE
from tests.bench.recovery_trial import TROUBLE, Job, Trial
from tests.cluster import faults
from tests.cluster.kind import Cluster

JOBS = 5  # at the same time; with more of them, the imports on one machine would dominate
_MORE_ROUNDS = 2  # extra rounds for those without a result


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A pod on the node that will be lost."""

    job: Job
    pod: str
    uid: str


def lost_nodes(cluster: Cluster, make: Callable[[str], Job], *, losses: int) -> Iterator[Trial]:
    """One trial for each lost pod, until there are `losses`; new jobs once the node is back.

    A round that cannot start is reported and skipped. A node that does not come back ends the benchmark.
    """
    node, found = cluster.workers[1], 0
    for number in range(-(-losses // JOBS) + _MORE_ROUNDS):
        if found >= losses:
            return
        began = time.monotonic()
        # A node is ready a moment before its taints are removed.
        cluster.kubectl.until("node", node, lambda seen: not seen["spec"].get("taints"))
        jobs = [make(f"node-{number}-{index}") for index in range(JOBS)]
        try:
            victims = _settled(jobs, node)
            print(
                f"round {number}: {len(victims)} pods on {node}, {time.monotonic() - began:.0f} s", flush=True
            )
            for trial in _lose(cluster, node, victims) if victims else ():
                found += 1
                yield trial
        finally:
            for job in jobs:
                job.delete_job()
        print(f"round {number}: over after {time.monotonic() - began:.0f} s", flush=True)


def _settled(jobs: Sequence[Job], node: str) -> list[Victim]:
    """Wait until the jobs train; return the pods on this node of jobs that run on both nodes."""
    found = []
    for job in jobs:
        try:
            job.settle()
            there = [pod for pod in job.pods if job.node(pod) == node]
            if len(there) == 1:  # otherwise no rank survives, or none is lost
                found.append(Victim(job=job, pod=there[0], uid=job.uid(there[0])))
            else:
                print(f"{job.name}: {len(there)} of its pods are on {node}, left out", flush=True)
        except TROUBLE as error:
            print(f"{job.name}: left out: {error}", flush=True)
    return found


def _lose(cluster: Cluster, node: str, victims: Sequence[Victim]) -> Iterator[Trial]:
    with ThreadPoolExecutor(len(victims)) as pool:
        fault = time.time()
        with faults.without_power(cluster, node):
            waits = {pool.submit(_recovered, each, fault, node): each for each in victims}
            for wait in as_completed(waits):
                print(f"{waits[wait].pod}: {wait.result()}", flush=True)
                yield wait.result()
            for each in victims:  # so that none of its pods is left when the node comes back
                each.job.delete_job()


def _recovered(victim: Victim, fault: float, node: str) -> Trial:
    try:
        return Trial(number=1, spent=victim.job.recover(NODE, victim.pod, fault, victim.uid, node))
    except TROUBLE as error:
        print(f"{victim.pod}: {error}", flush=True)
        return Trial(number=1, spent={})
