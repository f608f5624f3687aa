"""How long short commands of `kubectl dtj` take, with kubectl's own share for comparison."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench import report
from tests.integration import controlplane

JOBS = 20
ROUNDS = 20
NAMESPACE = "bench"


def main() -> None:
    """Measure and write the section of the page."""
    with (
        tempfile.TemporaryDirectory(prefix="dtj-bench-") as folder,
        controlplane.running(Path(folder)) as plane,
    ):
        controlplane.install_crd(plane)
        plane.kubectl("create", "namespace", NAMESPACE)
        plane.kubectl("apply", "-f", "-", given="---\n".join(map(_job, range(JOBS))))
        binary, config = plane.kubectl.binary, plane.kubectl.kubeconfig
        path = f"{binary.parent}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "KUBECONFIG": str(config)}
        dtj = [sys.executable, "-m", "dtj_client", f"--namespace={NAMESPACE}"]
        commands = {
            "`kubectl dtj --help`": [*dtj, "--help"],
            f"`kubectl dtj get`, {JOBS} jobs": [*dtj, "get"],
            f"`kubectl get dtj`, {JOBS} jobs": [str(binary), "-n", NAMESPACE, "get", "dtj"],
        }
        found: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(ROUNDS + 1):  # the first round fills caches
            for name, command in commands.items():
                took_s = once(command, env)
                if number:
                    found[name].append(took_s)
    rows = [[name, report.seconds(samples)] for name, samples in found.items()]
    report.write("client", report.table(["command", "s"], rows))


def once(command: Sequence[str], env: Mapping[str, str]) -> float:
    """Seconds of one run."""
    began = time.monotonic()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def _job(number: int) -> str:
    return f"""apiVersion: dtj.dev/v1alpha1
kind: DistributedTrainingJob
metadata: {{name: job-{number}, namespace: {NAMESPACE}}}
spec:
  template: {{spec: {{containers: [{{name: trainer, image: a, args: [run, train.py]}}]}}}}
"""
