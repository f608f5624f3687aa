"""An operator for several namespaces, with the roles that the chart gives it there and nowhere else."""

from __future__ import annotations

import contextlib
import json
import uuid

import yaml

from tests.integration import kubelet as kubelets
from tests.integration.api import LEASES
from tests.integration.chart.conftest import Helm
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import RIGHTS, Cluster, without
from tests.support.faultproxy import Fault, FaultProxy
from tests.support.predicates import phase

EVERYWHERE = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/dtj-operator-dtj-system"


def grant_in(helm: Helm, plane: ControlPlane, namespaces: list[str]) -> None:
    """Apply the roles of a chart that watches these namespaces."""
    rendered = helm.template({"watchNamespaces": namespaces}, process.NAMESPACE)
    roles = [each for each in yaml.safe_load_all(rendered) if each and each["kind"] in RIGHTS]
    plane.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": roles}))


async def test_operator_of_two_namespaces_serves_both_and_no_other(
    granted: ControlPlane, helm: Helm, cluster: Cluster, kubelet: Kubelet
):
    second, third = (Cluster(cluster.api, f"other-{uuid.uuid4().hex[:6]}") for _ in range(2))
    for each in (second, third):
        granted.kubectl("create", "namespace", each.namespace)
    grant_in(helm, granted, [cluster.namespace, second.namespace])
    options = {"watch": f"{second.namespace},{cluster.namespace}", "lease": "", "resync_s": 1.0}
    async with (
        without(granted, EVERYWHERE, "/api/v1/pods"),
        kubelets.playing(cluster.api, second.namespace) as others,
        process.running(granted, **options) as operator,
    ):
        await third.submit()
        await cluster.submit()
        await second.submit()
        await cluster.until(phase("Running"))
        await second.until(phase("Running"))
        await others.finish("job-1", 1)
        await second.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1)
        await cluster.api.delete(f"{cluster.jobs}/job")
        await cluster.api.until_gone(f"{cluster.pods}/job-1")

        assert "status" not in await third.job()
        assert await cluster.api.items(third.pods) == []
        for each in (cluster, second):
            lease = await cluster.api.get(f"{LEASES.format(each.namespace)}/{process.LEASE}")
            assert lease["spec"]["holderIdentity"] == f"{process.NAMESPACE}/operator-0"
        assert await operator.stop() == 0


async def test_namespace_without_rights_keeps_no_other_from_being_served(
    granted: ControlPlane, helm: Helm, cluster: Cluster, kubelet: Kubelet
):
    """As if it had been deleted, and were created again later."""
    gone = Cluster(cluster.api, f"gone-{uuid.uuid4().hex[:6]}")
    granted.kubectl("create", "namespace", gone.namespace)
    grant_in(helm, granted, [cluster.namespace, gone.namespace])
    binding = (
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{gone.namespace}/rolebindings/dtj-operator-dtj-system"
    )
    options = {"watch": f"{gone.namespace},{cluster.namespace}", "lease": "", "resync_s": 1.0}
    pods = f"/api/v1/namespaces/{gone.namespace}/pods"
    async with (
        without(granted, EVERYWHERE, "/api/v1/pods"),
        kubelets.playing(cluster.api, gone.namespace),
        contextlib.AsyncExitStack() as missing,
    ):
        await missing.enter_async_context(without(granted, binding, pods))
        async with process.running(granted, **options) as operator:
            await gone.submit()
            await cluster.submit()
            await cluster.until(phase("Running"))
            assert "status" not in await gone.job()

            await missing.aclose()
            await gone.until(phase("Running"))
            assert await operator.stop() == 0


async def test_namespace_whose_lease_cannot_be_written_keeps_no_other_from_being_served(
    granted: ControlPlane, helm: Helm, cluster: Cluster, kubelet: Kubelet
):
    """As while a webhook refuses it."""
    other = Cluster(cluster.api, f"closed-{uuid.uuid4().hex[:6]}")
    granted.kubectl("create", "namespace", other.namespace)
    grant_in(helm, granted, [cluster.namespace, other.namespace])
    leases = LEASES.format(other.namespace)
    await cluster.api.create(leases, {"metadata": {"name": process.LEASE}, "spec": {}})
    options = {"watch": f"{other.namespace},{cluster.namespace}", "lease": "", "resync_s": 1.0}
    async with (
        FaultProxy(granted.url, granted.tls()).serving() as proxy,
        kubelets.playing(cluster.api, other.namespace),
    ):
        refused = Fault(lambda request: request.method == "PUT" and leases in request.path, 403, times=10**6)
        proxy.inject(refused)
        async with process.running(granted, server=proxy.url, **options) as operator:
            await other.submit()
            await cluster.submit()
            await cluster.until(phase("Running"))
            assert "status" not in await other.job()

            proxy.clear()
            await other.until(phase("Running"))
            assert await operator.stop() == 0
