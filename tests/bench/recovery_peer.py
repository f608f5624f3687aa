"""A rank is killed five times in each job, under our operator and under Kubeflow's PyTorchJob operator.

Both run the same program, in two pods of the same image on the same nodes. PyTorchJob does not recover ranks:
the kubelets restart the containers of the killed rank and of its peer, which exits when it loses the
connection.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import pytorchjob, report
from tests.bench.recovery_jobs import REPLICAS, job, namespace
from tests.bench.recovery_times import RANK, Seen, marks, stages
from tests.bench.recovery_trial import log_since
from tests.cluster import faults, install, kind
from tests.cluster.kind import Cluster
from tests.e2e.conftest import TRAINER
from tests.support.kubectl import Json, Kubectl
from tests.support.pool import Pool

NAMESPACE = "bench-recovery-peer"
JOBS, KILLS = 4, 5
AT_ONCE = 2  # jobs at the same time: the peer's mostly wait
WITHIN_S = 600.0
LOOK_S = 2.0  # polling interval only; the results come from time stamps
QUIET_S = 2.0  # of training between two kills
# The default init container uses an image that has to be pulled; this one is already on the nodes.
INIT_CONTAINER = f"""
- name: wait-for-master
  image: {TRAINER}
  imagePullPolicy: Never
  command: [sh, -c, "until getent hosts {{{{.MasterAddr}}}}; do sleep 0.2; done"]
"""


@dataclass(frozen=True, kw_only=True)
class System:
    """An operator whose jobs are measured; in the names of its pods, {{}} is the job's name."""

    name: str
    kind: str
    pods: tuple[str, ...]

    def manifest(self, name: str, nodes: tuple[str, ...]) -> Json:
        """A job of two pods with a rank each."""
        ours = job(name, nodes=nodes)
        if self.kind == "dtj":
            return ours
        template = copy.deepcopy(ours["spec"]["template"])
        container = template["spec"]["containers"][0]
        container |= {
            "name": "pytorch",  # their operator sets the environment of the container with this name
            "imagePullPolicy": "Never",
            "command": ["python", *container.pop("args")[1:]],
            "env": [{"name": "LOCAL_RANK", "value": "0"}],
        }
        return pytorchjob.manifest(name, REPLICAS, template)


OURS = System(name="DistributedTrainingJob", kind="dtj", pods=("{}-0", "{}-1"))
THEIRS = System(name=pytorchjob.NAME, kind="pytorchjob", pods=("{}-master-0", "{}-worker-0"))


def main() -> None:
    """Measure and write the section of the page."""
    root = install.with_operator()
    cluster = kind.create()
    with tempfile.TemporaryDirectory() as scratch, namespace(root, NAMESPACE) as kubectl:
        template = Path(scratch, "init-container.yaml")
        template.write_text(INIT_CONTAINER)
        flag = f"--pytorch-init-container-template-file={template}"
        log = Path(scratch, "operator.log")
        with pytorchjob.operator(root, pytorchjob.standard(), flag, log=log):
            taken = {system.name: measure(cluster, kubectl, system) for system in (OURS, THEIRS)}
    report.write("recovery peer", text(taken))


def measure(cluster: Cluster, kubectl: Kubectl, system: System) -> list[list[float]]:
    """Seconds of each kill in order, for each job."""
    with Pool(AT_ONCE) as pool:
        begun = [pool.submit(one_job, cluster, kubectl, system, f"job-{number}") for number in range(JOBS)]
        return [each.result() for each in begun]


def one_job(cluster: Cluster, kubectl: Kubectl, system: System, name: str) -> list[float]:
    """Kill the ranks of a job in turns; stops after the first kill from which it does not recover."""
    pods = [pod.format(name) for pod in system.pods]
    kubectl.apply(system.manifest(name, cluster.workers))
    found: list[float] = []
    try:
        for number in range(KILLS):
            for pod in pods:
                kubectl.follow(pod, "did step ")
            time.sleep(QUIET_S)
            victim = pods[number % len(pods)]
            fault = faults.send(cluster, faults.rank(cluster, kubectl, victim), "KILL")
            seconds = until_trained(kubectl, pods, victim, fault)
            print(f"{system.name} {name}, kill {number + 1}: {seconds}", flush=True)
            if seconds is None:
                break
            found.append(seconds)
    finally:
        kubectl("delete", system.kind, name, "--wait=false")
    return found


def until_trained(kubectl: Kubectl, pods: Sequence[str], victim: str, fault: float) -> float | None:
    """Seconds until all ranks have done a new step; None if they do not in time."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        logs = {pod: log_since(kubectl, pod, fault) for pod in pods}
        found = marks(RANK, fault=fault, victim=victim, logs=logs, seen=Seen())
        if found:
            return stages(fault, found)["all"]
    return None


def text(taken: dict[str, list[list[float]]]) -> str:
    """Return the table: a row for each operator, a column for each kill of a job."""
    head = ["seconds until all ranks train again", *(f"kill {number + 1}" for number in range(KILLS))]
    rows = []
    for name, jobs in taken.items():
        columns = [[spent[number] for spent in jobs if len(spent) > number] for number in range(KILLS)]
        rows.append([name, *(_cell(column) for column in columns)])
    return report.table(head, rows)


def _cell(samples: Sequence[float]) -> str:
    missing = f", {JOBS - len(samples)} never" if len(samples) < JOBS else ""
    return (
        f"{statistics.median(samples):.1f} ({min(samples):.1f}-{max(samples):.1f})" if samples else ""
    ) + missing
