"""The operator with the chart's roles, an API client, and a kubelet for the test's namespace."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from tests.chaos.witness import Witness, watching
from tests.integration import api as rest
from tests.integration import kubelet as kubelets
from tests.integration.api import EVENTS, JOBS, PODS, Api
from tests.integration.chart.conftest import CHART, Helm, helm
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.process import Kept

__all__ = ["helm"]
Json = dict[str, Any]
RIGHTS = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount")
FENCE = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def grant(helm: Helm, plane: ControlPlane, **values: Json) -> list[Json]:
    """Apply the chart's ServiceAccount, roles and fence, and return everything that it renders."""
    rendered = helm("template", "dtj", str(CHART), f"--namespace={process.NAMESPACE}", given=values)
    manifests = [each for each in yaml.safe_load_all(rendered) if each]
    # Kubernetes creates the second one too, shortly after the API server is ready.
    namespaces: list[Json] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in (process.NAMESPACE, "kube-node-lease")
    ]
    chosen = [*namespaces, *(each for each in manifests if each["kind"] in RIGHTS + FENCE)]
    plane.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": chosen}))
    return manifests


@pytest.fixture(scope="session")
def granted(helm: Helm, plane: ControlPlane) -> ControlPlane:
    """Return the control plane, with the chart's roles bound to the operator's user, and its fence."""
    grant(helm, plane)
    return plane


@contextlib.asynccontextmanager
async def without(plane: ControlPlane, binding: str, forbidden: str) -> AsyncIterator[None]:
    """Remove a binding of the operator's user until the block ends.

    binding    path of the ClusterRoleBinding or RoleBinding
    forbidden  path that cannot be read without it; waits until reading it is refused, and allowed again
    """
    async with rest.connect(plane) as admin, rest.connect(plane, "operator") as operator:
        taken = await admin.get(binding)
        await admin.delete(binding)
        try:
            await operator.until_answered(forbidden, 403)
            yield
        finally:
            del taken["metadata"]["resourceVersion"]
            await admin.create(binding.rpartition("/")[0], taken)
            await operator.until_answered(forbidden, 200)


@pytest.fixture
async def api(granted: ControlPlane) -> AsyncIterator[Api]:
    """Return a client of the API server, as admin."""
    async with rest.connect(granted) as api:
        yield api


@pytest.fixture
async def kubelet(api: Api, namespace: str) -> AsyncIterator[Kubelet]:
    """Return a kubelet for the test's namespace."""
    async with kubelets.playing(api, namespace) as kubelet:
        yield kubelet


@pytest.fixture
async def witness(api: Api, namespace: str) -> AsyncIterator[Witness]:
    """Return a witness of all events in the test's namespace; a violation that it sees fails the test."""
    async with watching(api, namespace) as witness:
        yield witness
        assert witness.violations() == []


@pytest.fixture
async def operator(granted: ControlPlane, namespace: str, witness: Witness) -> AsyncIterator[Kept]:
    """Return an operator that watches the test's namespace."""
    async with process.kept(granted, watch=namespace) as operator:
        yield operator


@pytest.fixture
async def impatient(granted: ControlPlane, namespace: str, witness: Witness) -> AsyncIterator[Kept]:
    """Return an operator that polls agents often, and waits two seconds where the operator waits minutes."""
    module = "tests.integration.operator.impatient"
    async with process.kept(granted, watch=namespace, poll_s=2.0, module=module) as operator:
        yield operator


class Cluster:
    """Operations on the jobs of the test's namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self.jobs, self.pods = JOBS.format(namespace), PODS.format(namespace)

    async def submit(self, name: str = "job", **spec: Any) -> Json:
        """Create a job of two replicas."""
        return await self.api.create(self.jobs, job(name, **spec))

    async def change(self, name: str = "job", **spec: Any) -> Json:
        """Change fields of a job's spec."""
        return await self.api.patch(f"{self.jobs}/{name}", {"spec": spec})

    async def job(self, name: str = "job") -> Json:
        """Return a job."""
        return await self.api.get(f"{self.jobs}/{name}")

    async def until_event(self, reason: str, name: str = "", *, note: str = "") -> Json:
        """Wait for an Event with this reason, about the job of this name if one is given.

        note  how its text begins

        Events follow the status, so they may come a little later.
        """
        return await self.api.until_any(
            EVENTS.format(self.namespace),
            lambda event: (
                event["reason"] == reason
                and name in ("", event["regarding"]["name"])
                and event["note"].startswith(note)
            ),
        )

    async def until(self, holds: Any, name: str = "job") -> Json:
        """Wait until a job has a status, and `holds` is true for the job."""
        return await self.api.until(f"{self.jobs}/{name}", lambda job: "status" in job and holds(job))


def job(name: str = "job", **spec: Any) -> Json:
    """Return a job of two replicas that restarts without a pause."""
    container = {"name": "trainer", "image": "trainer:1"}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    return {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {"replicas": 2, "recovery": {"backoffSeconds": 0}, "template": template, **spec},
    }


@pytest.fixture
def cluster(api: Api, namespace: str) -> Cluster:
    """Return the test's namespace."""
    return Cluster(api, namespace)
