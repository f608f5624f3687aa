"""Which pods reach the ports of a job, by connections, in a cluster that enforces NetworkPolicies.

tests/integration/chart/test_network.py computes from the policies who does. In our own cluster, whose pod
network enforces none, a program of ours does so during the test.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.cluster import install, policies
from tests.cluster.kind import Cluster
from tests.e2e.conftest import TRAINER, shell_job, workload_job
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import phase

AGENT, RENDEZVOUS, PROBE = 29400, 29500, 8080
ENFORCED_WITHIN_S = 60  # network plugins learn of pods and policies some time later

# Prints which of the addresses that are its arguments accept a connection. A first packet that was dropped
# is repeated after a second.
CONNECT = """
import concurrent.futures, json, socket, sys

def accepts(target):
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=4).close()
    except OSError:
        return False
    return True

with concurrent.futures.ThreadPoolExecutor() as pool:
    print(json.dumps(list(pool.map(accepts, sys.argv[1:]))))
"""


# On both ports, in place of an agent and a rank.
LISTEN = f"python3 -m http.server {AGENT} & exec python3 -m http.server {RENDEZVOUS}"


def bare_pod(name: str, labels: dict[str, str]) -> Json:
    """Return a pod that listens on the port PROBE, and from which a test can connect."""
    container = {
        "name": "python",
        "image": TRAINER,
        "command": ["python", "-m", "http.server", "--directory=/usr/share", str(PROBE)],
        "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


def running(kubectl: Kubectl, name: str) -> str:
    """Wait until a pod runs and return its address."""
    pod = kubectl.until("pod", name, phase("Running"))
    return str(pod["status"]["podIP"])


def accepted(kubectl: Kubectl, pod: str, targets: list[str]) -> list[bool]:
    """Connect from a pod to each `address:port`; return which connections were accepted.

    Under load `kubectl exec` has ended well without what the program printed: then return nothing.
    """
    answers: list[bool] = json.loads(kubectl("exec", pod, "--", "python", "-c", CONNECT, *targets) or "[]")
    return answers


def settled(ask: Callable[[], object], expected: object) -> object:
    """Ask until the answer is the expected one, for at most ENFORCED_WITHIN_S; return the last answer."""
    deadline = time.monotonic() + ENFORCED_WITHIN_S
    while (seen := ask()) != expected and time.monotonic() < deadline:
        pass
    return seen


@pytest.fixture
def monitoring(kubectl: Kubectl) -> Iterator[Kubectl]:
    """Return kubectl for a second new namespace."""
    name = f"monitoring-{uuid.uuid4().hex[:6]}"
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield replace(kubectl, namespace=name)
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def notebook(kubectl: Kubectl, cluster: Cluster) -> Iterator[str]:
    """Return the name of a pod, once it cannot connect to a pod that a policy closes."""
    kubectl.apply(bare_pod("notebook", {"app": "notebook"}), bare_pod("probe", {"app": "probe"}))
    target = [f"{running(kubectl, 'probe')}:{PROBE}"]
    running(kubectl, "notebook")
    assert settled(lambda: accepted(kubectl, "notebook", target), [True]) == [True]
    closed = {"podSelector": {"matchLabels": {"app": "probe"}}, "policyTypes": ["Ingress"]}
    with contextlib.ExitStack() as stack:
        if cluster.pod_network:
            stack.enter_context(policies.enforced(cluster, str(kubectl.namespace)))
        kubectl.apply(
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {"name": "probe"},
                "spec": closed,
            }
        )
        if settled(lambda: accepted(kubectl, "notebook", target), [False]) != [False]:
            assert not cluster.pod_network, "go/network-policies does not enforce policies"
            pytest.skip("the network plugin of this cluster enforces no NetworkPolicy")
        yield "notebook"


@pytest.mark.long(35)
def test_only_pods_of_a_job_and_readers_that_it_admits_can_connect(
    kubectl: Kubectl, installed: Kubectl, monitoring: Kubectl, notebook: str
):
    reader = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": monitoring.namespace}},
        "podSelector": {"matchLabels": {"app": "prometheus"}},
    }
    trains = ("--steps=100000", "--step-s=0.5")
    kubectl.apply(workload_job("closed", *trains, network={"allowFrom": [reader]}))
    kubectl.apply(shell_job("open", LISTEN, network={"policy": "None"}))
    for pod in ("closed-0", "closed-1"):
        kubectl.follow(pod, "did step 3 ")  # the ranks reach each other, by ports that the system chooses
    first = kubectl.get("pod", "closed-0") or {}
    monitoring.apply(
        bare_pod("prometheus", {"app": "prometheus"}), bare_pod("copy", first["metadata"]["labels"])
    )
    for pod in ("prometheus", "copy"):
        running(monitoring, pod)
    system = replace(installed, namespace=install.NAMESPACE)
    operator, *_ = system.list("pods", "app.kubernetes.io/name=dtj-operator")

    sources = {
        "the job": (kubectl, "closed-1"),
        "another job": (kubectl, "open-1"),
        "another pod of the namespace": (kubectl, notebook),
        "the operator": (system, operator["metadata"]["name"]),
        "Prometheus, which the job admits": (monitoring, "prometheus"),
        "a pod with copied labels elsewhere": (monitoring, "copy"),
    }
    targets = [
        f"{running(kubectl, pod)}:{port}" for pod in ("closed-0", "open-0") for port in (AGENT, RENDEZVOUS)
    ]

    def matrix() -> dict[str, list[bool]]:
        with ThreadPoolExecutor() as pool:
            rows = pool.map(lambda of: accepted(of[0], of[1], targets), sources.values())
            return dict(zip(sources, rows, strict=True))

    everything = [True, True]  # on the agent's port, and on that of the rendezvous
    expected = {
        "the job": [True, True, *everything],
        "another job": [False, False, *everything],
        "another pod of the namespace": [False, False, *everything],
        "the operator": [True, False, *everything],
        "Prometheus, which the job admits": [True, False, *everything],
        "a pod with copied labels elsewhere": [False, False, *everything],
    }
    assert settled(matrix, expected) == expected
