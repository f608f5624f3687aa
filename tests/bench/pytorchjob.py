"""Kubeflow's PyTorchJob operator, for comparison: compiled from its module, run as a process here.

It is the legacy version 1: Kubeflow has replaced it by Trainer v2.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.cluster import config, go, proc, tools
from tests.support.kubectl import Kubectl
from tests.support.ports import free_port

MODULE, VERSION = "training-operator", "v1.8.1"
NAME = f"PyTorchJob {VERSION} (legacy)"
SOURCE = "github.com/kubeflow/training-operator"
NAMESPACE = "kubeflow"
# Its webhook expects a certificate here; in a cluster this is a mounted Secret.
CERTIFICATES = Path("/tmp/k8s-webhook-server/serving-certs")
START_S = 180
# Of the tuned variant: the number of workers and the client rate of our operator.
THREADS, QPS, BURST = 16, 500, 1000
Json = dict[str, Any]


def manifest(name: str, replicas: int, template: Mapping[str, Any]) -> Json:
    """A PyTorchJob with `replicas` pods: a master, and workers for the others."""

    def of(count: int) -> Json:
        return {"replicas": count, "restartPolicy": "OnFailure", "template": template}

    specs = {"Master": of(1)} | ({"Worker": of(replicas - 1)} if replicas > 1 else {})
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": specs},
    }


def says_running(job: Json) -> bool:
    """Whether a PyTorchJob reports that it runs and that every pod is active."""
    status = job.get("status") or {}
    wanted = sum(replica["replicas"] for replica in job["spec"]["pytorchReplicaSpecs"].values())
    active = sum(replica.get("active", 0) for replica in (status.get("replicaStatuses") or {}).values())
    states = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    return states.get("Running") == "True" and active == wanted


@contextlib.contextmanager
def operator(kubectl: Kubectl, program: Path, *flags: str, log: Path) -> Iterator[int]:
    """Run their operator, with its CRDs but none of its other manifests; yields its process id.

    kubectl  for the cluster that it works on, with the user that it runs as
    """
    crds = go.module_folder(MODULE, SOURCE) / "manifests" / "base" / "crds"
    kubectl("apply", "--server-side", "-k", str(crds))
    kubectl("wait", "--for=condition=Established", "crd/pytorchjobs.kubeflow.org", "--timeout=30s")
    secret = {"name": "training-operator-webhook-cert", "namespace": NAMESPACE}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": secret},
        _unused_webhook(),
    )
    health, metrics, webhook = (free_port() for _ in range(3))
    command = [
        str(program),
        "--enable-scheme=pytorchjob",
        f"--health-probe-bind-address=127.0.0.1:{health}",
        f"--metrics-bind-address=127.0.0.1:{metrics}",
        f"--webhook-server-port={webhook}",
        *flags,
    ]
    environment = {**os.environ, "KUBECONFIG": str(kubectl.kubeconfig), "MY_POD_NAMESPACE": NAMESPACE}
    CERTIFICATES.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        made = _until_filled(kubectl, secret)
        for name in ("tls.crt", "tls.key", "ca.crt", "ca.key"):
            (CERTIFICATES / name).write_bytes(base64.b64decode(made["data"][name]))
        _until_working(process, log)
        yield process.pid
    finally:
        process.kill()
        process.wait()
        for path in CERTIFICATES.glob("*"):
            path.unlink()


def _until_filled(kubectl: Kubectl, secret: Json) -> Json:
    """Wait until their operator has written its certificates to its Secret, and return the Secret."""
    namespaced = replace(kubectl, namespace=secret["namespace"])
    return namespaced.until("secret", secret["name"], lambda found: "tls.crt" in found.get("data", {}))


def _until_working(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the log says that its controllers work; its health port answers earlier."""
    deadline = time.monotonic() + START_S
    while "Starting workers" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the training operator does not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)  # between two polls


def _unused_webhook() -> Json:
    """Their operator waits for this object; it selects no namespace, so the webhook is never called."""
    hook = {
        "name": "validator.pytorchjob.training-operator.kubeflow.org",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": "https://127.0.0.1:1/unused"},
        "namespaceSelector": {"matchLabels": {"bench/no-such": "namespace"}},
        "rules": [
            {
                "apiGroups": ["kubeflow.org"],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pytorchjobs"],
            }
        ],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "validator.training-operator.kubeflow.org"},
        "webhooks": [hook],
    }


def standard() -> Path:
    """Their operator, unchanged."""
    return tools.ensure(MODULE)[MODULE]


def tuned() -> Path:
    """Their operator with another client rate.

    It has no flag for it, so two constants of its library are changed in a copy.
    """
    folder = config.cache() / "bin" / f"{MODULE}-{go.module_key(MODULE)}"
    program = folder / f"tuned-{QPS}-{BURST}"
    if program.exists():
        return program
    library = "sigs.k8s.io/controller-runtime"
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(shutil.copytree(go.module_folder(MODULE, library), Path(scratch, "library")))
        source = copied / "pkg" / "client" / "config" / "config.go"
        text = source.read_text()
        for constant, value in (
            ("cfg.QPS = 20.0", f"cfg.QPS = {QPS}"),
            ("cfg.Burst = 30", f"cfg.Burst = {BURST}"),
        ):
            assert text.count(constant) == 1, f"{source} has changed"
            text = text.replace(constant, value)
        source.write_text(text)
        modules = Path(scratch, "go.mod")
        modules.write_text(
            (config.GO_MODULES / MODULE / "go.mod").read_text() + f"\nreplace {library} => {copied}\n"
        )
        shutil.copy(config.GO_MODULES / MODULE / "go.sum", scratch)
        proc.run(
            go.toolchain(), "build", *go.flags(MODULE), f"-modfile={modules}", "-o", program,
            tools.PROGRAMS["training-operator"].package,
            step="building the tuned training-operator (about 60 s, once)",
            cwd=config.GO_MODULES / MODULE, env=go.environment(),
        )  # fmt: skip
    return program
