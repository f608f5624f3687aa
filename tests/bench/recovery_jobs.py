"""Jobs on the kind cluster whose recovery is measured, and their namespace and volume."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.cluster import install
from tests.e2e.conftest import TRAINER, config_map
from tests.support.kubectl import Json, Kubectl

PROGRAM = Path(__file__).with_name("recovery_program.py")
REPLICAS = 2
_CLAIM = "runs"


def job(
    name: str,
    *args: str,
    nodes: tuple[str, ...],
    flags: Sequence[str] = (),
    processes: int = 1,
    checkpoint: Json | None = None,
    **recovery: Any,
) -> Json:
    """A job of two replicas on these nodes, with a budget that is never spent; flags: of `dtj run`."""
    wanted = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    apart = {
        "weight": 100,
        "podAffinityTerm": {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"dtj.dev/job-name": name}},
        },
    }
    pod = {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms},
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]},
        },
        "containers": [
            {
                "name": "trainer",
                "image": TRAINER,
                "args": ["run", *flags, "/app/program.py", *args],
                "resources": {"requests": {"cpu": "10m", "memory": "300Mi"}},
                "volumeMounts": [{"name": "app", "mountPath": "/app"}],
            }
        ],
        "volumes": [{"name": "app", "configMap": {"name": "program"}}],
    }
    spec: Json = {
        "replicas": REPLICAS,
        "processesPerReplica": processes,
        "template": {"spec": pod},
        "recovery": {"maxRestarts": 1000, "avoidNodeAfterFaults": "Never", **recovery},
    }
    return {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": spec | ({"checkpoint": checkpoint} if checkpoint else {}),
    }


@contextlib.contextmanager
def namespace(root: Kubectl, name: str) -> Iterator[Kubectl]:
    """A fresh namespace with the program in it; deleted afterwards."""
    root("delete", "namespace", name, "--ignore-not-found", "--wait=true")
    root.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    kubectl = replace(root, namespace=name)
    kubectl.apply(config_map("program", {"program.py": PROGRAM.read_text()}))
    try:
        yield kubectl
    finally:
        root("delete", "namespace", name, "--wait=false")


@contextlib.contextmanager
def shared_volume(kubectl: Kubectl) -> Iterator[Json]:
    """The `checkpoint` part of a spec, on a folder that all nodes share."""
    name = f"{kubectl.namespace}-{_CLAIM}"
    everywhere = replace(kubectl, namespace=None)
    everywhere("delete", "persistentvolume", name, "--ignore-not-found")  # left by an interrupted run
    size = {"storage": "1Gi"}
    claim = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": name}
    volume = {
        "capacity": size,
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": kubectl.namespace, "name": _CLAIM},
        "hostPath": {"path": install.SHARED_FOLDER, "type": "Directory"},
    }
    kubectl.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": _CLAIM},
            "spec": claim | {"resources": {"requests": size}},
        },
    )
    try:
        yield {"volume": {"persistentVolumeClaim": {"claimName": _CLAIM}}}
    finally:
        everywhere("delete", "persistentvolume", name, "--wait=false")
