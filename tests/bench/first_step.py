"""Seconds to the first step of every rank, on real kubelets: of a manifest, and of an edited folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.bench import report
from tests.cluster import install
from tests.e2e.conftest import WORKLOAD, config_map, workload_job
from tests.support.kubectl import Kubectl

NAMESPACE = "bench-first-step"
ROUNDS = 10
CLIENT = Path(__file__).parents[2] / "client/src"
PROGRAM = """
import torch, torch.distributed as dist
from words import GREETING
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(GREETING, int(total), flush=True)
dist.destroy_process_group()
"""


def main() -> None:
    """Measure and write the section of the page."""
    root = install.with_operator()
    root.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    kubectl = replace(root, namespace=NAMESPACE)
    kubectl.apply(config_map("workload", {"workload.py": WORKLOAD}))
    try:
        applied = [one(kubectl, f"first-{number}") for number in range(ROUNDS)]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train.py").write_text(PROGRAM)
            submitted = [edited(kubectl, Path(folder), number) for number in range(ROUNDS)]
    finally:
        root("delete", "namespace", NAMESPACE, "--wait=false")
    rows = [
        ["`kubectl apply` of a manifest", ROUNDS, report.seconds(applied)],
        ["`kubectl dtj submit --follow` of an edited folder", ROUNDS, report.seconds(submitted)],
    ]
    report.write("first_step", report.table(["command", "runs", "to the first step on all ranks, s"], rows))


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


def edited(kubectl: Kubectl, folder: Path, number: int) -> float:
    """Edit a line and submit the folder: seconds until the user sees both ranks after an all-reduce."""
    (folder / "words.py").write_text(f"GREETING = 'greeting {number}'\n")
    name = f"edited-{number}"
    began = time.monotonic()
    lines = shown(kubectl, folder, "submit", "--replicas=2", f"--name={name}", "--follow", "--", "train.py")
    waiting = {f"[rank {rank}] greeting {number} 2" for rank in range(2)}
    for line in lines:
        waiting -= {text for text in waiting if text in line}
        if not waiting:
            break
    if waiting:
        raise RuntimeError(f"{name} ended and did not show: {', '.join(sorted(waiting))}")
    took_s = time.monotonic() - began
    for _ in lines:
        pass  # until the job has ended
    kubectl("delete", "dtj", name)
    kubectl.until_gone("pods")
    return took_s


def shown(kubectl: Kubectl, folder: Path, *words: str) -> Iterator[str]:
    """Run `kubectl dtj` in the folder and yield the lines of its output."""
    options = (f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={NAMESPACE}")
    path = f"{kubectl.binary.parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        [sys.executable, "-m", "dtj_client", *options, *words],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(CLIENT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise RuntimeError(f"kubectl dtj {' '.join(words)}: exit code {process.returncode}")
