"""Nodes that only pretend: pods put there are said to run at once and cost nothing. For benchmarks.

KWOK plays the kubelets of these nodes from a process on this machine; API server, scheduler and
controllers are the cluster's real ones.
"""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from typing import IO

from tests.cluster import go, proc, tools
from tests.cluster.errors import ClusterError
from tests.support.kubectl import Json, Kubectl, KubectlError

# How nodes and pods behave: ready at once, alive by lease, running as soon as they are scheduled.
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
LABEL = "type=kwok"
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
READY_WITHIN_S = 60
LEASE_S = 40  # by itself KWOK renews no lease, and nodes without one are soon taken for lost
# What a pod's spec needs to land on these nodes and on no others.
PLACEMENT: Json = {
    "nodeSelector": {"type": "kwok"},
    "tolerations": [{"key": TAINT["key"], "operator": "Exists", "effect": TAINT["effect"]}],
}


@contextlib.contextmanager
def nodes(kubectl: Kubectl, *, count: int) -> Iterator[None]:
    """Add so many pretended nodes, ready when the body starts, and take them away afterwards."""
    program = tools.ensure("kwok")["kwok"]
    kubectl.apply(*(node(f"kwok-{number}") for number in range(count)))
    with tempfile.TemporaryFile() as log:
        command = [
            str(program), f"--kubeconfig={kubectl.kubeconfig}", "--manage-all-nodes=false",
            f"--manage-nodes-with-label-selector={LABEL}", "--server-address=",
            f"--node-lease-duration-seconds={LEASE_S}", *stages(),
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
    """KWOK's own descriptions of behaviour, which it ships beside its source and does not read unasked."""
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
    """A node with room for a thousand pods."""
    room = {"cpu": "256", "memory": "1Ti", "pods": "1000"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"type": "kwok", "kubernetes.io/hostname": name},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": room, "capacity": room},
    }
