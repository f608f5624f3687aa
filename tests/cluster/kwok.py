"""Simulated nodes for benchmarks: pods placed there are Running immediately and use no resources.

KWOK simulates the kubelets of these nodes in a process on this machine. API server, scheduler and
controllers are the cluster's own.
"""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from typing import IO

from tests.cluster import go, proc, tools
from tests.cluster.errors import ClusterError
from tests.support.kubectl import Json, Kubectl, KubectlError

# Nodes are ready immediately and renew their lease; pods are Running as soon as they are scheduled.
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
LABEL = "type=kwok"
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
READY_WITHIN_S = 60
CIDR = "10.0.0.0/24"  # of the pods: KWOK's default, and nothing answers there
LEASE_S = 40  # KWOK renews no lease by default, and nodes without one soon count as lost
# What a pod's spec needs to land on these nodes and on no others.
PLACEMENT: Json = {
    "nodeSelector": {"type": "kwok"},
    "tolerations": [{"key": TAINT["key"], "operator": "Exists", "effect": TAINT["effect"]}],
}


@contextlib.contextmanager
def nodes(kubectl: Kubectl, *, count: int, cidr: str = CIDR) -> Iterator[None]:
    """Add `count` simulated nodes, ready when the body starts, and remove them afterwards.

    cidr  of the pods' addresses
    """
    program = tools.ensure("kwok")["kwok"]
    kubectl.apply(*(node(f"kwok-{number}") for number in range(count)))
    with tempfile.TemporaryFile() as log:
        command = [
            str(program), f"--kubeconfig={kubectl.kubeconfig}", "--manage-all-nodes=false",
            f"--manage-nodes-with-label-selector={LABEL}", "--server-address=",
            f"--node-lease-duration-seconds={LEASE_S}", f"--cidr={cidr}", *stages(),
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            until_ready(kubectl, process, log)
            yield
        finally:
            process.terminate()
            process.wait()
            kubectl("delete", "node", "--selector", LABEL, "--wait=false")


def stages() -> Iterator[str]:
    """KWOK's own stage files, which it ships beside its source and reads only if a flag names them."""
    folder = go.module_folder("kwok", "sigs.k8s.io/kwok") / "kustomize" / "stage"
    for stage in STAGES:
        files = sorted((folder / stage).glob("*.yaml"))
        yield from (f"--config={file}" for file in files if file.name != "kustomization.yaml")


def until_ready(kubectl: Kubectl, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    try:
        kubectl("wait", "node", "--selector", LABEL, "--for=condition=Ready", f"--timeout={READY_WITHIN_S}s")
    except KubectlError as error:
        log.seek(0)
        printed = log.read().decode(errors="replace")
        raise ClusterError(proc.failure(["kwok"], process.poll() or 0, printed)) from error


def node(name: str) -> Json:
    """A node with capacity for a thousand pods."""
    capacity = {"cpu": "256", "memory": "1Ti", "pods": "1000"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"type": "kwok", "kubernetes.io/hostname": name},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": capacity, "capacity": capacity},
    }
