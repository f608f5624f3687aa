"""A real etcd and kube-apiserver on loopback, with RBAC, token users and an audit log.

There is no controller manager, so nothing is garbage collected and namespaces never disappear. There is no
scheduler and no kubelet either; tests/integration/kubelet.py simulates both. Every control plane has its own
ports and folder, so several can run at the same time.

`placing_gangs` starts one with PodGroups, and with a scheduler: of Kubernetes 1.36, or of 1.37 on request.
"""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import gang_releases, tools
from tests.support.kubectl import Kubectl, KubectlError
from tests.support.ports import free_port

Json = dict[str, Any]
START_S = 240  # about 5 s on an idle machine
PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
NO_CLASS = "no PriorityClass with name"  # the API server answers this with 403 too
CRDS = Path(__file__).parents[2] / "crds"
CRD = "distributedtrainingjobs.dtj.dev"

# Users: token -> (user, groups). The operator's user has the name of its ServiceAccount.
OPERATOR_USER = "system:serviceaccount:dtj-system:dtj-operator"
USERS = {
    "admin": ("admin", "system:masters"),
    "operator": (OPERATOR_USER, "system:serviceaccounts,system:serviceaccounts:dtj-system"),
    "alice": ("alice", ""),
    "kueue": (
        "system:serviceaccount:kueue-system:kueue-controller-manager",
        "system:serviceaccounts,system:serviceaccounts:kueue-system",
    ),
    # Other controllers in benchmarks, each with its own name in the audit log.
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
    """A program of the control plane that tests can kill, freeze and restart."""

    def __init__(self, log: Path, program: Path, *flags: str) -> None:
        self._log, self._command = log, [str(program), *flags]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, with its existing data."""
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(self._command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill it; it loses everything in memory."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Stop it with SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue it with SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raise RuntimeError with the end of its log if it has exited by itself."""
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
        """Kill and restart one of the two programs; return when both are ready."""
        server.kill()
        server.start()
        wait_until_ready(self)

    def compact(self) -> int:
        """Compact all history in etcd; return the version up to which it is gone."""
        version = int(self._etcd("range", {"key": "YQ=="})["header"]["revision"])
        self._etcd("compaction", {"revision": str(version), "physical": True})
        return version

    def stored(self, key: str) -> Json:
        """Return an object as it is in etcd; only custom resources are stored as JSON."""
        found = self._etcd("range", {"key": base64.b64encode(key.encode()).decode()})
        value: Json = json.loads(base64.b64decode(found["kvs"][0]["value"]))
        return value

    def _etcd(self, call: str, body: Json) -> Json:
        """Ask etcd's JSON gateway; keys in base64."""
        request = urllib.request.Request(f"{self.etcd_url}/v3/kv/{call}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: Json = json.load(answer)
            return found

    def kubeconfig(self, user: str, *, server: str = "") -> Path:
        """Write a kubeconfig for one of USERS; `server` is set if the user connects through a proxy."""
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
        """Return the requests of the operator's user so far, oldest first."""
        return self.audit_from(0)[0]

    def forbidden(self) -> list[Json]:
        """Return the operator's requests that it has no right to; tests that use its token send dry runs."""
        return [
            line
            for line in self.audit()
            if line.get("responseStatus", {}).get("code") == 403
            and "dryRun" not in line["requestURI"]
            and NO_CLASS not in line["responseStatus"].get("message", "")
        ]

    def audit_from(self, offset: int) -> tuple[list[Json], int]:
        """Return the requests after a byte offset of the audit log, and its length now."""
        log = self.folder / "audit.log"
        if not log.exists():
            return [], 0
        with log.open("rb") as file:
            file.seek(offset)
            whole = file.read().rpartition(b"\n")[0]  # the last line may be incomplete
        lines = whole.splitlines()
        return [json.loads(line) for line in lines], offset + len(whole) + bool(lines)


def token(user: str) -> str:
    """Return the bearer token of a user."""
    return f"{user}-token"


@contextlib.contextmanager
def running(folder: Path, *, synced: bool = False) -> Iterator[ControlPlane]:
    """Start a control plane with its data in `folder`, and stop it at the end.

    synced  each write waits for the disk, as in a real cluster; tests need not survive a power failure
    """
    with started(prepare(tools.ensure(*PROGRAMS), folder, synced=synced)) as plane:
        yield plane


@contextlib.contextmanager
def started(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Start the programs of a control plane, and stop them at the end."""
    try:
        plane.etcd.start()
        plane.apiserver.start()
        wait_until_ready(plane)
        plane.kubeconfig("admin").rename(plane.kubectl.kubeconfig)
        yield plane
    finally:  # their data are discarded, so a clean stop is not needed
        plane.apiserver.kill()
        plane.etcd.kill()


@contextlib.contextmanager
def placing_gangs(
    folder: Path,
    *,
    more_gates: bool = False,
    scheduler: Sequence[str] = (),
    ignored: bool = False,
    released: bool = True,
) -> Iterator[ControlPlane]:
    """Start a control plane that serves PodGroups, and a scheduler.

    Both are of the release of DTJ_TEST_KUBERNETES, or else of the oldest one that places gangs. Of the
    controller manager only the controller runs that releases PodGroups whose pods have ended.

    more_gates  also those for preemption of whole gangs and for domains
    scheduler   further flags of the scheduler
    ignored     the scheduler has none of the gates, so it ignores PodGroups
    released    else the controller manager has none of the gates, so deleted PodGroups keep their finalizer
    """
    release = gang_releases.chosen()
    on = release.gates_flag(more=more_gates)
    programs = tools.ensure(*PROGRAMS, *release.programs.values())
    served = [release.served_flag, on]
    chosen = programs | {"kube-apiserver": programs[release.programs["kube-apiserver"]]}
    with started(prepare(chosen, folder, flags=served)) as plane, contextlib.ExitStack() as stack:
        connected = [
            f"--kubeconfig={plane.kubectl.kubeconfig}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        ]
        flags = {
            "kube-scheduler": [*scheduler, *([] if ignored else [on])],
            "kube-controller-manager": [
                "--controllers=podgroup-protection-controller",
                *([on] if released else []),
            ],
        }
        for name, own in flags.items():
            port = f"--secure-port={free_port()}"
            given = [*connected, *own, port, f"--cert-dir={folder}/{name}"]
            server = Server(folder / f"{name}.log", programs[release.programs[name]], *given)
            server.start()
            stack.callback(server.kill)
        yield plane


def install_crd(plane: ControlPlane) -> None:
    """Install the CRD, and wait until the API server serves it."""
    install(plane, CRDS, CRD)


def install(plane: ControlPlane, manifests: Path, *crds: str) -> None:
    """Install CRDs from a file or folder, and wait until the API server serves the kinds with these names."""
    steps = (
        ("apply", "--server-side", "--force-conflicts", "-f", str(manifests)),
        ("wait", "--for=condition=Established", *(f"crd/{name}" for name in crds), "--timeout=60s"),
        ("get", ",".join(crds), "--all-namespaces"),
    )
    deadline = time.monotonic() + START_S
    for step in steps:
        while True:
            try:
                plane.kubectl(*step)
            except KubectlError:  # it reports ready shortly before everything is
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)  # between two tries
            else:
                break


def prepare(
    programs: dict[str, Path], folder: Path, *, synced: bool = False, flags: Sequence[str] = ()
) -> ControlPlane:
    """Return a control plane whose programs are not started yet.

    flags  further flags of the API server
    """
    client, peer, secure = (free_port() for _ in range(3))
    etcd_url = f"http://127.0.0.1:{client}"
    kubeconfig = folder / "kubeconfig-admin"
    return ControlPlane(
        url=f"https://127.0.0.1:{secure}",
        ca=folder / "certificates" / "apiserver.crt",
        folder=folder,
        kubectl=Kubectl(binary=programs["kubectl"], kubeconfig=kubeconfig),
        etcd=etcd(programs["etcd"], folder, etcd_url, f"http://127.0.0.1:{peer}", synced=synced),
        etcd_url=etcd_url,
        apiserver=apiserver(programs["kube-apiserver"], folder, etcd_url, secure, flags),
    )


def etcd(program: Path, folder: Path, client: str, peer: str, *, synced: bool = False) -> Server:
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
        *([] if synced else ["--unsafe-no-fsync"]),
    )


def apiserver(program: Path, folder: Path, etcd_url: str, port: int, flags: Sequence[str] = ()) -> Server:
    """Return a kube-apiserver, and create the files that it needs."""
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
        # Without a controller manager, no namespace gets its default ServiceAccount.
        "--disable-admission-plugins=ServiceAccount",
        # Checks who may set blockOwnerDeletion, as OpenShift does.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        f"--audit-policy-file={folder}/audit.json",
        f"--audit-log-path={folder}/audit.log",
        *flags,
    )


def wait_until_ready(plane: ControlPlane) -> None:
    """Poll /readyz until it succeeds; the deadline is generous because the machine may be busy."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        plane.etcd.check()
        plane.apiserver.check()
        with contextlib.suppress(OSError, urllib.error.URLError):  # not listening yet, or not ready
            urllib.request.urlopen(f"{plane.url}/readyz", context=plane.tls(), timeout=5).close()
            return
        time.sleep(0.1)  # between two requests
    log = (plane.folder / "kube-apiserver.log").read_text()[-3000:]
    raise RuntimeError(f"kube-apiserver not ready within {START_S} s:\n{log}")
