"""Gives a cluster the control plane of a newer Kubernetes, one that places gangs; its kubelets stay.

Kubernetes supports kubelets that are older than the API server. kubeadm runs the control plane as static
pods: each gets another program, from a folder of its node, and the flags that gangs need.
"""

import time

import yaml

from tests.cluster import proc, tools
from tests.cluster.engine import Engine
from tests.cluster.errors import ClusterError
from tests.cluster.gang_releases import CONTROL_PLANE, GangRelease
from tests.support.kubectl import Json, Kubectl

PROGRAMS, MANIFESTS = "/opt/dtj", "/etc/kubernetes/manifests"  # on the node
VERSION_LABEL = "dtj.dev/kubernetes"
READY_WITHIN_S = 240.0


def replace(engine: Engine, node: str, kubectl: Kubectl, release: GangRelease) -> None:
    """Replace the programs on the control plane's node one after the other, the API server first."""
    built = tools.build(*release.programs.values())
    with proc.timed(f"control plane of Kubernetes {release.version} on {node} (about 60 s)"):
        engine("exec", node, "mkdir", "-p", PROGRAMS)
        for name in CONTROL_PLANE:
            engine("cp", built[release.programs[name]], f"{node}:{PROGRAMS}/{name}")
            manifest = f"{MANIFESTS}/{name}.yaml"
            pod = yaml.safe_load(engine("exec", node, "cat", manifest))
            # The kubelet must never read half a manifest.
            write = f"cat > {PROGRAMS}/{name}.yaml && mv {PROGRAMS}/{name}.yaml {manifest}"
            changed = yaml.safe_dump(with_program(pod, name, release))
            engine("exec", "--interactive", node, "sh", "-c", write, stdin=changed)
            wait_until_ready(kubectl, f"{name}-{node}", release)


def with_program(pod: Json, name: str, release: GangRelease) -> Json:
    """Return a static pod with the program below PROGRAMS in place of its image's."""
    served = [release.served_flag] if name == "kube-apiserver" else []
    (container,) = pod["spec"]["containers"]
    mount = {"name": "program", "mountPath": f"/usr/local/bin/{name}", "readOnly": True}
    volume = {"name": "program", "hostPath": {"path": f"{PROGRAMS}/{name}", "type": "File"}}
    container = {
        **container,
        "command": [*container["command"], *served, release.gates_flag(more=False)],
        "volumeMounts": [*container["volumeMounts"], mount],
    }
    labels = {**pod["metadata"]["labels"], VERSION_LABEL: release.version}
    spec = {**pod["spec"], "containers": [container], "volumes": [*pod["spec"]["volumes"], volume]}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": spec}


def wait_until_ready(kubectl: Kubectl, pod: str, release: GangRelease) -> None:
    """Wait until the kubelet has replaced a static pod; the API server does not answer meanwhile."""
    deadline = time.monotonic() + READY_WITHIN_S
    chosen = ("--selector", f"{VERSION_LABEL}={release.version}", f"--field-selector=metadata.name={pod}")
    wait = ("--for=condition=Ready", "--timeout=10s")
    asked = kubectl.command("--namespace=kube-system", "wait", "pod", *chosen, *wait)
    while not proc.works(*asked, within_s=20):
        if time.monotonic() > deadline:
            state = kubectl("--namespace=kube-system", "get", "pods", check=False)
            raise ClusterError(f"{pod} of Kubernetes {release.version} is not ready:\n{state}")
        time.sleep(1)  # between two questions
