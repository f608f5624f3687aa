"""An hour of two jobs on real kubelets with faults at random times: how much of it was training?

A seeded Poisson process kills ranks and deletes pods. The goodput in the job's status is compared with the
truth from the ranks' own logs of their steps ("books").
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

from tests.bench import report
from tests.bench.goodput_truth import parse, productive
from tests.bench.recovery_jobs import REPLICAS, job, namespace, shared_volume
from tests.cluster import config, faults, install, kind
from tests.cluster.errors import ClusterError
from tests.cluster.kind import Cluster
from tests.support.kubectl import Kubectl, KubectlError

SECONDS = float(os.environ.get("DTJ_GOODPUT_SECONDS", "3600"))
SEED = int(os.environ.get("DTJ_GOODPUT_SEED", "1"))
NAMESPACE = "bench-goodput"
MEANS_S = {"often": 120.0, "seldom": 600.0}  # between two faults, by job
_POLL_WITHIN_S = 60.0
KILL, DELETE = "ranks killed", "pods deleted"


@dataclass(kw_only=True)
class Account:
    """Result of a job.

    said   percent according to status.goodput
    truth  percent according to the ranks' books
    """

    mean_s: float
    said: float = 0.0
    truth: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    ledger: dict[str, Any] = field(default_factory=dict)
    restarts: dict[str, Any] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)


def text(accounts: list[Account]) -> str:
    """Return the section of the page."""
    head = (
        "mean time between faults, s", "hours", KILL, DELETE, "steps", "goodput by status, %",
        "by the ranks' books, %", "start-up, s", "lost, s", "recovering, s",
    )  # fmt: skip
    rows = [
        (
            f"{a.mean_s:.0f}", f"{a.seconds / 3600:.2f}", a.faults[KILL], a.faults[DELETE], a.steps,
            f"{a.said:.1f}", f"{a.truth:.1f}", a.ledger.get("startupSeconds"), a.ledger.get("lostSeconds"),
            a.ledger.get("recoveringSeconds"),
        )
        for a in accounts
    ]  # fmt: skip
    return report.table(head, rows)


class Faults(threading.Thread):
    """Injects faults into one job until it is stopped."""

    def __init__(self, cluster: Cluster, kubectl: Kubectl, name: str, account: Account) -> None:
        super().__init__(daemon=True)
        self._cluster, self._kubectl, self._job, self._account = cluster, kubectl, name, account
        self._dice = Random(f"{SEED} {name}")
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._dice.expovariate(1 / self._account.mean_s)):
            victim = f"{self._job}-{self._dice.randrange(REPLICAS)}"
            how = self._dice.choice((KILL, DELETE))
            try:
                if how == KILL:
                    faults.signal_rank(self._cluster, self._kubectl, victim, "KILL")
                else:
                    self._kubectl("delete", "pod", victim, "--grace-period=0", "--force")
            except (ClusterError, KubectlError, KeyError) as error:  # being replaced: no victim
                print(f"{self._job}: {how} {victim}: {error}", flush=True)
                how = "no victim"
            self._account.faults[how] += 1

    def end(self) -> None:
        self._over.set()
        self.join()


def seconds_of(moment: str) -> float:
    """Seconds since 1970 of a Kubernetes timestamp."""
    return datetime.fromisoformat(moment).timestamp()


def settle(cluster: Cluster, kubectl: Kubectl, name: str, account: Account) -> None:
    """Read both accounts at one moment, some time after the last fault."""
    seen = kubectl.until(
        "dtj",
        name,
        lambda found: found["status"]["phase"] == "Running" and "goodput" in found["status"],
        within_s=_POLL_WITHIN_S,
    )
    # Wait for an answer from after this moment: an older one may be from the time of a fault.
    after = time.time()
    seen = kubectl.until(
        "dtj",
        name,
        # After a restart of replica 0 there is no step for a moment.
        lambda f: (
            seconds_of(f["status"]["progress"]["observedAt"]) > after and "step" in f["status"]["progress"]
        ),
        within_s=_POLL_WITHIN_S,
    )
    status = seen["status"]
    began, until = seconds_of(status["startTime"]), seconds_of(status["progress"]["observedAt"])
    folder = f"{config.SHARED_FOLDER}/{kubectl.namespace}/{name}/{seen['metadata']['uid'][:8]}"
    books = [
        parse(faults.on_node(cluster, cluster.nodes[0], "cat", f"{folder}/book-{rank}.txt"))
        for rank in range(REPLICAS)
    ]
    account.seconds = until - began
    account.truth = 100 * productive(books, until=until) / account.seconds
    account.said = float(status["goodput"]["percent"])
    account.ledger, account.restarts = status["goodput"], status["restarts"]
    account.steps = status["progress"]["step"]


@contextlib.contextmanager
def harm(cluster: Cluster, kubectl: Kubectl, name: str, account: Account) -> Iterator[None]:
    """Inject faults into one job inside the block."""
    thread = Faults(cluster, kubectl, name, account)
    thread.start()
    try:
        yield
    finally:
        thread.end()


def main() -> None:
    """Measure and write the section of the page."""
    root = install.with_operator()
    cluster = kind.create()
    accounts = {name: Account(mean_s=mean_s) for name, mean_s in MEANS_S.items()}
    with (
        namespace(root, NAMESPACE) as kubectl,
        shared_volume(kubectl) as volume,
        contextlib.ExitStack() as stack,
    ):
        for name in accounts:
            manifest = job(name, "--step-s=0.2", nodes=cluster.workers[:1], checkpoint=volume)
            kubectl.apply(manifest)
        for name, account in accounts.items():
            kubectl.follow(f"{name}-0", "did step 3")
            stack.enter_context(harm(cluster, kubectl, name, account))
        print(f"faults begin at {datetime.now():%H:%M:%S}", flush=True)
        time.sleep(SECONDS)
        stack.close()
        for name, account in accounts.items():
            settle(cluster, kubectl, name, account)
            print(name, account, flush=True)
    report.write("goodput", text(list(accounts.values())))
