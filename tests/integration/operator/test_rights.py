"""The chart's roles grant exactly the rights that the operator uses, according to the audit log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import api as rest
from tests.integration import controlplane
from tests.integration import kubelet as kubelets
from tests.integration.api import EVENTS, POLICIES, SERVICES, WITHIN_S, Api, ApiError
from tests.integration.chart.conftest import Helm
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster, grant
from tests.support.predicates import condition, phase

Json = dict[str, Any]
Right = tuple[str, str, str]  # API group, resource, verb

# Not used by a request: the API server checks it when an owner reference blocks deletion.
BY_ADMISSION = {("dtj.dev", "distributedtrainingjobs/finalizers", "update")}
# Used where the API server serves PodGroups; tests/integration/gang checks that they suffice there.
NOT_SERVED = "scheduling.k8s.io"
# Every user may do this: discover what the API server serves, and ask what he may do.
DISCOVERY = ("/api", "/apis", "/version", "/openapi")
OWN_RIGHTS = ("authorization.k8s.io", "selfsubjectaccessreviews", "create")


@pytest.fixture
def own_plane(tmp_path: Path, helm: Helm) -> Iterator[tuple[ControlPlane, set[Right]]]:
    """Return a control plane with its own audit log, and the rights that the chart grants."""
    with controlplane.running(tmp_path) as plane:
        controlplane.install_crd(plane)
        plane.kubectl("create", "namespace", "jobs")
        yield plane, set(rights(grant(helm, plane)))


def rights(manifests: list[Json]) -> Iterator[Right]:
    """Yield the rights in the operator's roles."""
    users = ("-edit", "-view")
    for role in manifests:
        if role["kind"] in ("Role", "ClusterRole") and not role["metadata"]["name"].endswith(users):
            for rule in role["rules"]:
                for group in set(rule["apiGroups"]) - {NOT_SERVED}:
                    yield from ((group, kind, verb) for kind in rule["resources"] for verb in rule["verbs"])


def used(plane: ControlPlane) -> set[Right]:
    """Return the rights that the operator has used; check that no request was forbidden."""
    found = set()
    for line in plane.audit():
        target = line.get("objectRef")
        if target is None:
            assert line["requestURI"].startswith(DISCOVERY), line
            continue
        code = line.get("responseStatus", {}).get("code")
        assert code not in (401, 403) or forbidden_by_policy(line), line
        kind = "/".join(filter(None, (target["resource"], target.get("subresource"))))
        found.add((target.get("apiGroup", ""), kind, line["verb"]))
    return found


def forbidden_by_policy(line: Json) -> bool:
    """Whether a quota, not a missing right, refused the request."""
    return "exceeded quota" in line["responseStatus"].get("message", "")


async def live(cluster: Cluster, kubelet: Kubelet) -> None:
    """Let jobs go through everything that the operator acts on."""
    theirs: Json = {"metadata": {"name": "blocked"}, "spec": {"ports": [{"port": 80}]}}
    await cluster.api.create(SERVICES.format("jobs"), theirs)
    theirs = {"metadata": {"name": "walled"}, "spec": {"podSelector": {}}}
    await cluster.api.create(POLICIES.format("jobs"), theirs)
    theirs = {"metadata": {"name": "taken-1"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    await cluster.api.create(cluster.pods, theirs)
    for name, spec in {
        "done": {"ttlSecondsAfterFinished": 0},
        "crashing": {},
        "deleted": {},
        "blocked": {},
        "walled": {},
        "taken": {},
    }.items():
        await cluster.submit(name, **spec)
    for name in ("blocked", "walled", "taken"):
        await cluster.until(condition("PodsReady", "False", "NameConflict"), name)

    for name in ("done", "crashing", "deleted"):
        await cluster.until(phase("Running"), name)
    for name in ("done-0", "done-1"):
        await kubelet.finish(name)
    await reverts(cluster.api, SERVICES, "crashing", {"selector": {"edited": "yes"}})
    # Of another job: between two reverts of one job the operator pauses for a minute.
    await reverts(cluster.api, POLICIES, "deleted", {"podSelector": {"matchLabels": {"edited": "yes"}}})
    await kubelet.finish("crashing-0", 1)
    await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1, "crashing")
    await cluster.api.delete(f"{cluster.jobs}/deleted")
    await cluster.api.until_gone(f"{cluster.jobs}/done")
    await cluster.api.until_gone(f"{SERVICES.format('jobs')}/deleted")
    await kubelet.finish("crashing-1", 78)
    await cluster.until(phase("Failed"), "crashing")
    await cluster.api.until_gone(f"{SERVICES.format('jobs')}/crashing")


async def reverts(api: Api, folder: str, name: str, spec: Json) -> None:
    """Edit the spec of a child, and wait until the operator has undone it."""
    path = f"{folder.format('jobs')}/{name}"
    await api.patch(path, {"spec": spec})
    await api.until(path, lambda seen: "edited" not in str(seen["spec"]))


async def fits_nowhere(cluster: Cluster, kubelet: Kubelet) -> None:
    """Mark the pod as unschedulable, as the scheduler does."""
    await kubelet.until(lambda pods: "waiting-1" in pods)
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    await kubelet.set_status("waiting-1", {"conditions": [refused]})
    await cluster.until(condition("PodsReady", "False", "Unschedulable"), "waiting")


async def test_rights_granted_are_the_rights_used(own_plane: tuple[ControlPlane, set[Right]]):
    plane, granted = own_plane
    async with rest.connect(plane) as api, kubelets.playing(api, "jobs") as kubelet:
        cluster = Cluster(api, "jobs")
        async with process.running(plane) as operator:
            await live(cluster, kubelet)
            kubelet.starts = False
            await cluster.submit("waiting")
            await fits_nowhere(cluster, kubelet)
            await cluster.until_event("Unschedulable", "waiting")  # sent after the status
            await kubelet.set_status(
                "waiting-1", {"conditions": [{"type": "PodScheduled", "status": "True"}]}
            )
            await cluster.until(condition("PodsReady", "False", "Starting"), "waiting")
            await operator.stop()
        async with process.running(
            plane
        ) as operator:  # finds the Event of the earlier process and increases its count
            await fits_nowhere(cluster, kubelet)
            event = await api.until_any(EVENTS.format("jobs"), lambda event: event.get("series") is not None)
            assert event["series"]["count"] == 2
            await operator.stop()

    assert used(plane) - {OWN_RIGHTS} | BY_ADMISSION == granted


async def test_owner_references_need_the_right_on_finalizers(own_plane: tuple[ControlPlane, set[Right]]):
    plane, _ = own_plane
    async with rest.connect(plane) as admin, rest.connect(plane, "operator") as api:
        job = await Cluster(admin, "jobs").submit()
        owner = {
            "apiVersion": "dtj.dev/v1alpha1",
            "kind": "DistributedTrainingJob",
            "name": "job",
            "uid": job["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        service: Json = {  # one that the fence allows
            "metadata": {"name": "a", "ownerReferences": [owner]},
            "spec": {"clusterIP": "None", "ports": [{"port": 80}]},
        }
        await api.create_patiently(SERVICES.format("jobs"), service)
        await take_away(admin, "distributedtrainingjobs/finalizers")
        assert "cannot set blockOwnerDeletion" in await refusal(api, SERVICES.format("jobs"), service)


async def refusal(api: Api, folder: str, body: Json) -> str:
    """Create an object until that is refused: a change of rights takes effect a moment later."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        body["metadata"]["name"] = f"try-{time.monotonic_ns()}"
        try:
            await api.create(folder, body)
        except ApiError as error:
            return str(error)
        await asyncio.sleep(0.05)  # between two tries
    raise AssertionError(f"POST {folder} was never refused")


async def take_away(admin: Api, resource: str) -> None:
    """Remove the rules about a resource from the operator's ClusterRole."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/dtj-operator-dtj-system"
    role = await admin.get(path)
    await admin.patch(path, {"rules": [rule for rule in role["rules"] if resource not in rule["resources"]]})


DENIED = [
    ("read Secrets", "GET", "/api/v1/namespaces/default/secrets"),
    ("read a Secret of its own namespace", "GET", "/api/v1/namespaces/dtj-system/secrets/a"),
    ("read ConfigMaps", "GET", "/api/v1/namespaces/default/configmaps"),
    ("run commands in pods", "POST", "/api/v1/namespaces/default/pods/a/exec?command=sh"),
    ("read logs", "GET", "/api/v1/namespaces/default/pods/a/log"),
    ("change a pod", "PATCH", "/api/v1/namespaces/default/pods/a"),
    ("pretend to be a kubelet", "PATCH", "/api/v1/namespaces/default/pods/a/status"),
    ("place a pod", "POST", "/api/v1/namespaces/default/pods/a/binding"),
    ("delete all pods at once", "DELETE", "/api/v1/namespaces/default/pods"),
    ("change a job", "PATCH", "/apis/dtj.dev/v1alpha1/namespaces/default/distributedtrainingjobs/a"),
    ("create a job", "POST", "/apis/dtj.dev/v1alpha1/namespaces/default/distributedtrainingjobs"),
    ("read one node", "GET", "/api/v1/nodes/a"),
    ("cordon a node", "PATCH", "/api/v1/nodes/a"),
    ("give itself rights", "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ("take another lease", "PUT", "/apis/coordination.k8s.io/v1/namespaces/default/leases/other"),
    ("take a lease elsewhere", "POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"),
    ("renew a kubelet's lease", "PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a"),
    ("list the kubelets' leases", "GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"),
    ("read a lease elsewhere", "GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a"),
    ("change the CRD", "PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/a"),
]


@pytest.mark.parametrize(("method", "path"), [pytest.param(*row[1:], id=row[0]) for row in DENIED])
async def test_operator_may_not(granted: ControlPlane, method: str, path: str):
    async with rest.connect(granted, "operator") as api:
        with pytest.raises(ApiError) as refused:
            await api.call(method, path, {})
    assert refused.value.status == 403
    assert controlplane.OPERATOR_USER in str(refused.value)
