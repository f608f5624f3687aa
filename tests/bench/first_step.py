"""Seconds from `kubectl apply` to the first step of every rank, on real kubelets."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tests.bench import report
from tests.cluster import install
from tests.e2e.conftest import WORKLOAD, config_map, workload_job
from tests.support.kubectl import Kubectl

NAMESPACE = "bench-first-step"
ROUNDS = 10


def main() -> None:
    """Measure and write the section of the page."""
    root = install.with_operator()
    root.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    kubectl = replace(root, namespace=NAMESPACE)
    kubectl.apply(config_map("workload", {"workload.py": WORKLOAD}))
    try:
        samples = [one(kubectl, f"first-{number}") for number in range(ROUNDS)]
    finally:
        root("delete", "namespace", NAMESPACE, "--wait=false")
    rows = [["2 replicas x 1 rank, gloo", ROUNDS, report.seconds(samples)]]
    report.write("first_step", report.table(["job", "runs", "apply -> first step on all ranks, s"], rows))


def one(kubectl: Kubectl, name: str) -> float:
    """Return the seconds of one run."""
    manifest = workload_job(name, "--steps=3", "--step-s=0")
    began = time.monotonic()
    kubectl.apply(manifest)
    with ThreadPoolExecutor() as pool:
        stepped = [pool.submit(first_step_at, kubectl, f"{name}-{index}") for index in range(2)]
        took_s = max(each.result() for each in stepped) - began
    kubectl("delete", "dtj", name)
    kubectl.until_gone("pods")
    return took_s


def first_step_at(kubectl: Kubectl, pod: str) -> float:
    """Return the monotonic time at which the pod's log first showed a step."""
    kubectl.follow(pod, "did step 1 ")
    return time.monotonic()
