"""`make demo`: from a bare machine to a finished two-node training run, shown live.

The set-up is that of the end-to-end tests (`tests.cluster.install`); this module only shows the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from tests.cluster import install
from tests.cluster.errors import ClusterError
from tests.support.kubectl import Json, Kubectl

EXAMPLE = Path("examples/digits-ddp.yaml")
JOB = "digits"
SELECTOR = f"--selector=dtj.dev/job-name={JOB}"
PATIENCE_S = 600.0
FINAL = ("Succeeded", "Failed")

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """Run the demo and return the exit status of the process."""
    began = time.monotonic()
    try:
        kubectl = install.with_operator()
    except ClusterError as error:
        console.print(f"demo: {error}", markup=False)
        return 1
    kubectl("delete", "dtj", JOB, "--ignore-not-found", "--wait=true")
    kubectl("wait", "--for=delete", f"service/{JOB}", "--timeout=60s", check=False)

    quote(kubectl, "apply", "-f", str(EXAMPLE))
    phase = show(kubectl)

    quote(kubectl, "get", "pods", SELECTOR, "-o", "wide")
    quote_client(kubectl, "status", JOB)
    console.print(
        f"\n{phase} after {time.monotonic() - began:.0f} s. The cluster keeps running. Next, try:\n"
    )
    for hint in hints(kubectl):
        console.print(f"  {hint}", markup=False)
    return 0 if phase == "Succeeded" else 1


def show(kubectl: Kubectl) -> str:
    """Print the job's phases and the merged logs of its ranks live; return the final phase."""
    deadline = time.monotonic() + PATIENCE_S
    threading.Thread(target=_show_logs, args=(kubectl, deadline), daemon=True).start()
    before = ""
    for line, phase in _progress(kubectl, deadline):
        console.print(f"[cyan]{line}[/cyan]")
        if phase == "Running" != before:
            quote(kubectl, "get", "service,pods", SELECTOR, "-o", "wide")
        if phase in FINAL:
            return phase
        before = phase
    return before


def quote(kubectl: Kubectl, *words: str) -> None:
    """Print a kubectl command and its output."""
    console.print(f"\n[bold]$ kubectl {' '.join(words)}[/bold]")
    console.print(kubectl(*words).strip() + "\n", markup=False)


def quote_client(kubectl: Kubectl, *words: str) -> None:
    """Print a command of the client and its output; Python runs its source, because it is not installed."""
    console.print(f"\n[bold]$ kubectl dtj {' '.join(words)}[/bold]")
    command = [sys.executable, "-m", "dtj_client", f"--kubeconfig={kubectl.kubeconfig}", *words]
    path = f"{kubectl.binary.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    console.print(f"{done.stdout}{done.stderr}", markup=False)


def hints(kubectl: Kubectl) -> tuple[str, ...]:
    """Return commands that show more."""
    config = f"export KUBECONFIG={kubectl.kubeconfig}"
    path = f"export PATH={kubectl.binary.parent}:$PATH"
    return (
        f"{config}; {path}; kubectl explain dtj.spec",
        f"kubectl logs {JOB}-0        # the log of replica 0; each line with its rank",
        "pip install './client[ui]' && kubectl dtj ui        # the jobs in a browser",
        "kubectl apply -f examples/plain-env.yaml && kubectl get dtj --watch",
    )


def _progress(kubectl: Kubectl, deadline: float) -> Iterator[tuple[str, str]]:
    """Yield a line, and the phase, for each change of the job's progress."""
    last = ""
    for event in kubectl.watch("dtj", f"--field-selector=metadata.name={JOB}", deadline=deadline):
        status: Json = event["object"].get("status", {})
        phase = status.get("phase", "")
        facts = {
            "ready": status.get("ready"),
            "step": status.get("step"),
            "loss": status.get("progress", {}).get("loss"),
        }
        line = f"{phase:<10} " + "  ".join(f"{key} {value}" for key, value in facts.items() if value)
        if phase and line != last:
            last = line
            yield line, phase


def _show_logs(kubectl: Kubectl, deadline: float) -> None:
    """Follow the log of each pod of the job from its start, in a thread for each."""
    followed: set[str] = set()
    for event in kubectl.watch("pods", SELECTOR, deadline=deadline):
        pod = event["object"]
        started = pod.get("status", {}).get("phase") in ("Running", "Succeeded", "Failed")
        if started and pod["metadata"]["uid"] not in followed:
            followed.add(pod["metadata"]["uid"])
            name = pod["metadata"]["name"]
            threading.Thread(target=_follow, args=(kubectl, name, deadline), daemon=True).start()


def _follow(kubectl: Kubectl, pod: str, deadline: float) -> None:
    rest = ""
    for chunk in kubectl.stream("logs", "--follow", pod, deadline=deadline):
        *lines, rest = (rest + chunk).split("\n")
        for line in lines:
            console.print(f"{pod}  {line}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
