"""A real etcd and kube-apiserver on loopback, with RBAC, token users and an audit log.

Nothing else of a cluster: there is no controller manager, so nothing is collected as garbage and namespaces
never go away; no scheduler and no kubelet, which tests/integration/kubelet.py plays. Every control plane has
ports and a folder of its own, so that several can run at the same time.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import tools
from tests.support.kubectl import Kubectl

Json = dict[str, Any]
START_S = 60
CRDS = Path(__file__).parents[2] / "crds"
CRD = "distributedtrainingjobs.dtj.dev"

# Who may log in: token -> (user, groups). The operator's user is what its ServiceAccount would be.
OPERATOR_USER = "system:serviceaccount:dtj-system:dtj-operator"
USERS = {
    "admin": ("admin", "system:masters"),
    "operator": (OPERATOR_USER, "system:serviceaccounts,system:serviceaccounts:dtj-system"),
    "alice": ("alice", ""),
    # What benchmarks put beside the operator, each with a name of its own in the audit log.
    "loop": ("loop", "system:masters"),
    "peer": ("peer", "system:masters"),
}
AUDITED = [OPERATOR_USER, "loop", "peer"]
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": AUDITED}, {"level": "None"}],
}


@dataclass(frozen=True, kw_only=True)
class ControlPlane:
    """A running API server.

    url        https://127.0.0.1:<port>
    ca         file with its certificate
    folder     its data, logs and kubeconfigs
    kubectl    as admin, in no particular namespace
    """

    url: str
    ca: Path
    folder: Path
    kubectl: Kubectl

    def kubeconfig(self, user: str, *, server: str = "") -> Path:
        """Write a kubeconfig for one of USERS; `server` where the way leads through a proxy."""
        cluster = {"server": server or self.url, "certificate-authority": str(self.ca)}
        if server.startswith("http:"):
            cluster = {"server": server}
        path = self.folder / f"kubeconfig-{user}-{abs(hash(server or self.url))}"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": user, "user": {"token": token(user)}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                    "current-context": "test",
                }
            )
        )
        return path

    def tls(self) -> ssl.SSLContext:
        """Return a context that trusts this API server."""
        return ssl.create_default_context(cafile=str(self.ca))

    def audit(self) -> list[Json]:
        """Return what the operator's user has asked for so far, oldest first."""
        log = self.folder / "audit.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines]


def token(user: str) -> str:
    """Return the bearer token of a user."""
    return f"{user}-token"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ControlPlane]:
    """Start a control plane whose data lie in `folder`, and stop it at the end."""
    programs = tools.ensure("etcd", "kube-apiserver", "kubectl")
    with contextlib.ExitStack() as stack:
        etcd = start_etcd(stack, programs["etcd"], folder)
        plane = start_apiserver(stack, programs, folder, etcd)
        yield plane


def install_crd(plane: ControlPlane) -> None:
    """Make our API known, and wait until the API server really serves it."""
    plane.kubectl("apply", "--server-side", "-f", str(CRDS))
    plane.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=30s")
    plane.kubectl("get", "dtj", "--all-namespaces")  # asks again while its cache is being set up


def start_etcd(stack: contextlib.ExitStack, program: Path, folder: Path) -> str:
    """Start etcd and return its URL."""
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    launch(
        stack,
        folder / "etcd.log",
        program,
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # nobody needs these data after a power cut
    )
    return client


def start_apiserver(
    stack: contextlib.ExitStack, programs: dict[str, Path], folder: Path, etcd: str
) -> ControlPlane:
    """Start kube-apiserver, wait until it is ready and return how to reach it."""
    (port,) = free_ports(1)
    (folder / "tokens.csv").write_text(
        "".join(f'{token(key)},{user},{user},"{groups}"\n' for key, (user, groups) in USERS.items())
    )
    (folder / "audit.json").write_text(json.dumps(AUDIT_POLICY))
    key = folder / "service-account.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    process = launch(
        stack,
        folder / "kube-apiserver.log",
        programs["kube-apiserver"],
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder}/certificates",
        f"--token-auth-file={folder}/tokens.csv",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        # Without a controller manager no namespace would get its default ServiceAccount.
        "--disable-admission-plugins=ServiceAccount",
        # Checks who may set blockOwnerDeletion, as OpenShift does.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        f"--audit-policy-file={folder}/audit.json",
        f"--audit-log-path={folder}/audit.log",
    )
    ca = folder / "certificates" / "apiserver.crt"
    kubeconfig = folder / "kubeconfig-admin"
    plane = ControlPlane(
        url=f"https://127.0.0.1:{port}",
        ca=ca,
        folder=folder,
        kubectl=Kubectl(binary=programs["kubectl"], kubeconfig=kubeconfig),
    )
    wait_until_ready(plane, process)
    plane.kubeconfig("admin").rename(kubeconfig)
    return plane


def wait_until_ready(plane: ControlPlane, process: subprocess.Popen[bytes]) -> None:
    """Ask /readyz until it agrees; the deadline is generous because the machine may be busy."""
    deadline = time.monotonic() + START_S
    log = plane.folder / "kube-apiserver.log"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"kube-apiserver ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        with contextlib.suppress(OSError, urllib.error.URLError):  # not there yet, or not ready
            urllib.request.urlopen(f"{plane.url}/readyz", context=plane.tls(), timeout=5).close()
            return
        time.sleep(0.1)  # between two questions, not instead of an answer
    raise RuntimeError(f"kube-apiserver not ready within {START_S} s:\n{log.read_text()[-3000:]}")


def launch(stack: contextlib.ExitStack, log: Path, program: Path, *flags: str) -> subprocess.Popen[bytes]:
    """Start a program that the stack ends, with its output in `log`."""
    out = stack.enter_context(log.open("wb"))
    process = subprocess.Popen([program, *flags], stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def stop() -> None:
        process.kill()  # its data are thrown away, so there is nothing to end in good order
        process.wait()

    stack.callback(stop)
    return process


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on; all are held at the same time, so they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
