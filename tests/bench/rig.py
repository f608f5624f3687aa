"""A control plane without kubelets: etcd, API server, scheduler, controllers, and KWOK's nodes, as processes.

It is cheap and the same everywhere, and the operator is a process whose memory and CPU can be read. It cannot
start containers: `first_step` and `demo` use the real cluster for that.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.rest import Rest, connect
from tests.cluster import kwok, tools
from tests.integration import controlplane
from tests.integration.chart.conftest import Helm
from tests.integration.controlplane import ControlPlane, Server
from tests.integration.operator import process
from tests.integration.operator.conftest import grant
from tests.integration.operator.process import Operator

NAMESPACE = "bench"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
POLICIES = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
JOBS = f"/apis/dtj.dev/v1alpha1/namespaces/{NAMESPACE}/distributedtrainingjobs"
READS = ("get", "list", "watch")
# Flags of the operator: its defaults, stated because results depend on them.
REQUESTS_PER_S = 500


@dataclass(frozen=True, kw_only=True)
class Rig:
    """A running control plane with nodes, and an admin's session."""

    plane: ControlPlane
    rest: Rest

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Operator]:
        """Run our operator, with the permissions of the chart and with filled caches."""
        async with process.running(self.plane, rate=REQUESTS_PER_S) as operator:
            yield operator

    def requests(self, user: str = controlplane.OPERATOR_USER) -> Requests:
        """Return the requests of a user to the API server so far."""
        return Requests(self.plane.folder / "audit.log", user)


class Requests:
    """The requests of one user by (verb, resource), counted from the API server's audit log."""

    def __init__(self, log: Path, user: str) -> None:
        self._log, self._user = log, user
        self._offset = log.stat().st_size if log.exists() else 0

    def since(self) -> Counter[tuple[str, str]]:
        """Return the requests since this object was created; Leases are not counted."""
        counted: Counter[tuple[str, str]] = Counter()
        with self._log.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                entry = json.loads(line)
                if entry["user"]["username"] != self._user or "objectRef" not in entry:
                    continue
                asked = entry["objectRef"]
                if asked["resource"] != "leases":
                    name = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
                    counted[entry["verb"], name] += 1
        return counted


def writes(counted: Counter[tuple[str, str]]) -> int:
    """Number of requests that write."""
    return sum(number for (verb, _), number in counted.items() if verb not in READS)


@contextlib.asynccontextmanager
async def running(
    *, nodes: int = 10, cidr: str = kwok.CIDR, scheduler_qps: int = 50, synced: bool = False
) -> AsyncIterator[Rig]:
    """Start everything but an operator.

    cidr           of the pods' addresses
    synced         etcd waits for its disk, as in a real cluster
    scheduler_qps  the scheduler's client rate; its default of 50 delays large numbers of pods
    """
    with (
        tempfile.TemporaryDirectory(prefix="dtj-bench-") as folder,
        _plane(Path(folder), scheduler_qps, synced) as plane,
        kwok.nodes(plane.kubectl, count=nodes, cidr=cidr),
    ):
        async with connect(plane.url, plane.tls(), controlplane.token("loop")) as rest:
            yield Rig(plane=plane, rest=rest)


@contextlib.contextmanager
def _plane(folder: Path, scheduler_qps: int, synced: bool) -> Iterator[ControlPlane]:
    programs = tools.ensure("kube-controller-manager", "kube-scheduler", "helm")
    with controlplane.running(folder, synced=synced) as plane:
        controlplane.install_crd(plane)
        (folder / "helm").mkdir()
        grant(Helm(programs["helm"], folder / "helm"), plane)
        plane.kubectl("create", "namespace", NAMESPACE)
        common = (f"--kubeconfig={plane.kubectl.kubeconfig}", "--leader-elect=false", "--secure-port=0")
        rate = (f"--kube-api-qps={scheduler_qps}", f"--kube-api-burst={2 * scheduler_qps}")
        servers = (
            Server(folder / "scheduler.log", programs["kube-scheduler"], *common, *rate),
            Server(folder / "controllers.log", programs["kube-controller-manager"], *common),
        )
        try:
            for server in servers:
                server.start()
            yield plane
        finally:
            for server in servers:
                server.kill()
