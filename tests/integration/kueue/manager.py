"""Runs a real Kueue against a control plane, outside of any pod, with the rights that it has in a cluster.

The API server calls its webhooks at a loopback port: their Service is an ExternalName, so the name in Kueue's
certificate still counts. Nothing of Kueue is part of this project: DTJ_TEST_KUEUE names the manager program,
and `manifests.yaml` of the same release lies beside it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.docs.blocks import all_blocks
from tests.integration.controlplane import ControlPlane, Server
from tests.support.ports import free_port

Json = dict[str, Any]
VARIABLE = "DTJ_TEST_KUEUE"
MISSING = (
    f"{VARIABLE} is not set to the path of a Kueue manager (0.19 or newer) that has manifests.yaml of its "
    "release beside it"
)
NAMESPACE, SERVICE, SECRET = "kueue-system", "kueue-webhook-service", "kueue-webhook-server-cert"
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
RIGHTS_FOR_JOBS = "kueue-dtj"  # a ClusterRole of docs/schedulers.md, for MultiKueue
HOOKED_GROUPS = ("", "kueue.x-k8s.io")  # the API server does not serve the other kinds of jobs
CERTIFICATE = ("ca.crt", "tls.key", "tls.crt")  # the manager waits for the last one
PODS_READY_S, RECOVERY_S = 20, 120
READY_S = 180.0


def program() -> Path | None:
    """Return the manager that the environment names, if it and its manifests exist."""
    named = Path(os.environ.get(VARIABLE) or os.devnull)
    return named if named.is_file() and manifests(named).is_file() else None


def manifests(manager: Path) -> Path:
    """Return the release's manifests."""
    return manager.with_name("manifests.yaml")


@contextlib.contextmanager
def running(plane: ControlPlane, manager: Path) -> Iterator[Server]:
    """Install Kueue's kinds and webhooks, and run its manager until the block ends."""
    folder = plane.folder / "kueue"
    certificates = folder / "certificates"
    certificates.mkdir(parents=True)
    webhook, health = free_port(), free_port()
    items = _for_loopback(list(yaml.safe_load_all(manifests(manager).read_text())), webhook)
    items += rights_for_jobs()
    crds = [each["metadata"]["name"] for each in items if each["kind"] == "CustomResourceDefinition"]
    chosen = folder / "manifests.json"
    chosen.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    configuration = folder / "configuration.json"
    configuration.write_text(json.dumps(_configuration(webhook, health, certificates)))
    plane.kubectl("create", "namespace", NAMESPACE)
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(chosen))
    plane.kubectl("wait", "--for=condition=Established", *(f"crd/{name}" for name in crds), "--timeout=60s")
    server = Server(
        folder / "manager.log",
        manager,
        f"--kubeconfig={plane.kubeconfig('kueue')}",
        f"--config={configuration}",
        "--feature-gates=VisibilityOnDemand=false",
        "--zap-log-level=2",
    )
    server.start()
    try:
        _wait_until_ready(plane, server, health, certificates)
        yield server
        server.check()
    finally:
        server.kill()
    lacks = [line for line in (folder / "manager.log").read_text().splitlines() if "is forbidden" in line]
    assert not lacks, lacks[0]


def rights_for_jobs() -> list[Json]:
    """Return what the page tells to give Kueue."""
    (block,) = (block for block in all_blocks("yaml") if f"name: {RIGHTS_FOR_JOBS}\n" in block.text)
    return list(yaml.safe_load_all(block.text))


def _for_loopback(found: list[Json], port: int) -> list[Json]:
    """The manifests that a manager outside of the cluster needs, with the webhooks at a loopback port."""
    chosen = [
        each for each in found if each["kind"] in ("CustomResourceDefinition", "Secret", *RIGHTS, *WEBHOOKS)
    ]
    for each in chosen:
        if each["kind"] in WEBHOOKS:
            each["webhooks"] = [
                hook
                for hook in each["webhooks"]
                if all(group in HOOKED_GROUPS for rule in hook["rules"] for group in rule["apiGroups"])
            ]
            for hook in each["webhooks"]:
                hook["clientConfig"]["service"]["port"] = port
        conversion = each.get("spec", {}).get("conversion")
        if conversion is not None:
            conversion["webhook"]["clientConfig"]["service"]["port"] = port
    service: Json = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }
    return [service, *chosen]


def _configuration(webhook: int, health: int, certificates: Path) -> Json:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True},
        "integrations": {"frameworks": ["pod"]},
        "multiKueue": {"externalFrameworks": [{"name": "DistributedTrainingJob.v1alpha1.dtj.dev"}]},
        "fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]},
        "waitForPodsReady": {
            "timeout": f"{PODS_READY_S}s",
            "recoveryTimeout": f"{RECOVERY_S}s",
            "requeuingStrategy": {"backoffLimitCount": 1, "backoffBaseSeconds": 2},
        },
    }


def _wait_until_ready(plane: ControlPlane, server: Server, health: int, certificates: Path) -> None:
    """Give the manager the certificate that it has made, as the kubelet mounts it, until it serves."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        server.check()
        if not (certificates / CERTIFICATE[-1]).exists():
            secret = json.loads(
                plane.kubectl("get", "secret", SECRET, f"--namespace={NAMESPACE}", "-o", "json")
            )
            for name in CERTIFICATE if CERTIFICATE[-1] in (secret.get("data") or {}) else ():
                (certificates / name).write_bytes(base64.b64decode(secret["data"][name]))
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz", timeout=5).close()
            return
        time.sleep(0.5)  # between two tries
    raise AssertionError(
        f"Kueue did not become ready:\n{(plane.folder / 'kueue/manager.log').read_text()[-4000:]}"
    )
