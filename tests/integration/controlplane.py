"""A real etcd and kube-apiserver on loopback, with RBAC, token users and an audit log.

Nothing else of a cluster: there is no controller manager, so nothing is collected as garbage and namespaces
never go away; no scheduler and no kubelet, which tests/integration/kubelet.py plays. Every control plane has
ports and a folder of its own, so that several can run at the same time.
"""

from __future__ import annotations

import contextlib
import json
import signal
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
from tests.support.kubectl import Kubectl, KubectlError
from tests.support.ports import free_port

Json = dict[str, Any]
START_S = 240  # some 5 s where the machine has nothing else to do
PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
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


class Server:
    """One program of the control plane, which tests may kill, freeze and start again."""

    def __init__(self, log: Path, program: Path, *flags: str) -> None:
        self._log, self._command = log, [str(program), *flags]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its data are where they were."""
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(self._command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """End it at once, with all that it had in memory."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Let it hang."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raise RuntimeError with the end of its log where it has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            tail = self._log.read_text()[-3000:]
            raise RuntimeError(f"{self._command[0]} ended with {self.process.returncode}:\n{tail}")


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
    apiserver: Server
    etcd: Server
    etcd_url: str

    def restart(self, server: Server) -> None:
        """Kill one of the two and start it again; return when all is ready."""
        server.kill()
        server.start()
        wait_until_ready(self)

    def compact(self) -> int:
        """Have etcd forget all history; return the version up to which it is gone."""
        version = int(self._etcd("range", {"key": "YQ=="})["header"]["revision"])
        self._etcd("compaction", {"revision": str(version), "physical": True})
        return version

    def _etcd(self, call: str, body: Json) -> Json:
        """Ask etcd's JSON gateway; keys in base64."""
        request = urllib.request.Request(f"{self.etcd_url}/v3/kv/{call}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            said: Json = json.load(answer)
            return said

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
        return self.audit_from(0)[0]

    def audit_from(self, offset: int) -> tuple[list[Json], int]:
        """Return what was asked since the log was so many bytes long, and how long it is now."""
        log = self.folder / "audit.log"
        if not log.exists():
            return [], 0
        with log.open("rb") as file:
            file.seek(offset)
            whole = file.read().rpartition(b"\n")[0]  # its last line may be half written
        lines = whole.splitlines()
        return [json.loads(line) for line in lines], offset + len(whole) + bool(lines)


def token(user: str) -> str:
    """Return the bearer token of a user."""
    return f"{user}-token"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ControlPlane]:
    """Start a control plane whose data lie in `folder`, and stop it at the end."""
    programs = tools.ensure(*PROGRAMS)
    plane = prepare(programs, folder)
    try:
        plane.etcd.start()
        plane.apiserver.start()
        wait_until_ready(plane)
        plane.kubeconfig("admin").rename(plane.kubectl.kubeconfig)
        yield plane
    finally:  # their data are thrown away, so there is nothing to end in good order
        plane.apiserver.kill()
        plane.etcd.kill()


def install_crd(plane: ControlPlane) -> None:
    """Make our API known, and wait until the API server really serves it."""
    steps = (
        ("apply", "--server-side", "--force-conflicts", "-f", str(CRDS)),
        ("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=60s"),
        ("get", "dtj", "--all-namespaces"),
    )
    deadline = time.monotonic() + START_S
    for step in steps:
        while True:
            try:
                plane.kubectl(*step)
            except KubectlError:  # it says that it is ready a little before all of it is
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)  # between two tries
            else:
                break


def prepare(programs: dict[str, Path], folder: Path) -> ControlPlane:
    """Return a control plane whose programs are not started yet."""
    client, peer, secure = (free_port() for _ in range(3))
    etcd_url = f"http://127.0.0.1:{client}"
    kubeconfig = folder / "kubeconfig-admin"
    return ControlPlane(
        url=f"https://127.0.0.1:{secure}",
        ca=folder / "certificates" / "apiserver.crt",
        folder=folder,
        kubectl=Kubectl(binary=programs["kubectl"], kubeconfig=kubeconfig),
        etcd=etcd(programs["etcd"], folder, etcd_url, f"http://127.0.0.1:{peer}"),
        etcd_url=etcd_url,
        apiserver=apiserver(programs["kube-apiserver"], folder, etcd_url, secure),
    )


def etcd(program: Path, folder: Path, client: str, peer: str) -> Server:
    """Return an etcd that listens on these URLs."""
    return Server(
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


def apiserver(program: Path, folder: Path, etcd_url: str, port: int) -> Server:
    """Return a kube-apiserver; what it needs beside etcd is made here."""
    (folder / "tokens.csv").write_text(
        "".join(f'{token(key)},{user},{user},"{groups}"\n' for key, (user, groups) in USERS.items())
    )
    (folder / "audit.json").write_text(json.dumps(AUDIT_POLICY))
    key = folder / "service-account.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    return Server(
        folder / "kube-apiserver.log",
        program,
        f"--etcd-servers={etcd_url}",
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


def wait_until_ready(plane: ControlPlane) -> None:
    """Ask /readyz until it agrees; the deadline is generous because the machine may be busy."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        plane.etcd.check()
        plane.apiserver.check()
        with contextlib.suppress(OSError, urllib.error.URLError):  # not there yet, or not ready
            urllib.request.urlopen(f"{plane.url}/readyz", context=plane.tls(), timeout=5).close()
            return
        time.sleep(0.1)  # between two questions, not instead of an answer
    log = (plane.folder / "kube-apiserver.log").read_text()[-3000:]
    raise RuntimeError(f"kube-apiserver not ready within {START_S} s:\n{log}")
