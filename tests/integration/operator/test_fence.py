"""The chart's policies: what the operator may not do although RBAC allows it, and who may create jobs.

All other tests of the operator run with the fence too, so they show that it does not hinder the operator.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from tests.integration import api as rest
from tests.integration.api import JOBS, PODS, POLICIES, SERVICES, WITHIN_S, Api, ApiError
from tests.integration.chart.conftest import CHART, Helm
from tests.integration.controlplane import ControlPlane
from tests.integration.operator.conftest import FENCE, Cluster, job

Json = dict[str, Any]
CONTROLLED = "only objects that a DistributedTrainingJob controls"
LACKS_RIGHT = 'is forbidden: User "'  # what RBAC says; a policy has other words
DRY = {"dryRun": "All"}
POD: Json = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
POLICY: Json = {"metadata": {"name": "a"}, "spec": {"podSelector": {}}}
HEADLESS: Json = {"metadata": {"name": "a"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}


async def refusal(api: Api, method: str, path: str, body: Json | None = None) -> str:
    """Send a request that changes nothing until a policy refuses it; rights and policies take effect late."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        try:
            await api.call(method, path, body, query=DRY)
        except ApiError as error:
            if error.status != 403:
                raise
            if LACKS_RIGHT not in str(error):
                return str(error)
        await asyncio.sleep(0.1)  # between two tries
    raise AssertionError(f"{method} {path} was never refused")


@pytest.fixture
async def thief(granted: ControlPlane) -> AsyncIterator[Api]:
    """Return a client that uses the operator's token."""
    async with rest.connect(granted, "operator") as api:
        yield api


def owned(body: Json, owner: Json, **reference: Any) -> Json:
    """Return an object that a job controls."""
    job = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    return body | {"metadata": body["metadata"] | {"ownerReferences": [job | reference]}}


async def test_stolen_token_cannot_touch_foreign_objects(thief: Api, api: Api, namespace: str):
    for folder, body in ((POLICIES, POLICY), (SERVICES, HEADLESS), (PODS, POD)):
        path = folder.format(namespace)
        foreign = await api.create(path, body)
        assert CONTROLLED in await refusal(thief, "DELETE", f"{path}/a")
        assert CONTROLLED in await refusal(thief, "POST", path, body | {"metadata": {"name": "b"}})
        if folder != PODS:  # its role has no right to change a pod
            assert CONTROLLED in await refusal(thief, "PUT", f"{path}/a", foreign)


async def refused_for_foreign(thief: Api, api: Api, folder: str, body: Json) -> None:
    """Check that the operator's token can neither create, change nor delete objects of others in a folder."""
    await api.create(folder, body)
    another = body | {"metadata": body["metadata"] | {"name": "another"}}
    assert CONTROLLED in await refusal(thief, "POST", folder, another)
    assert CONTROLLED in await refusal(thief, "DELETE", f"{folder}/{body['metadata']['name']}")


async def test_owner_must_be_a_job_that_controls_the_object(thief: Api, cluster: Cluster):
    owner, path = await cluster.submit(), POLICIES.format(cluster.namespace)
    for reference in ({"controller": False}, {"apiVersion": "apps/v1", "kind": "ReplicaSet"}):
        assert CONTROLLED in await refusal(thief, "POST", path, owned(POLICY, owner, **reference))
    ours = await thief.create(path, owned(POLICY, owner))
    released = ours | {"metadata": {**ours["metadata"], "ownerReferences": []}}
    assert CONTROLLED in await refusal(thief, "PUT", f"{path}/a", released)
    await thief.call("PUT", f"{path}/a", ours)
    await thief.delete(f"{path}/a")


async def test_nothing_is_created_in_a_closed_namespace(thief: Api, cluster: Cluster):
    pod = owned(POD, await cluster.submit())
    assert "fence.closedNamespaces" in await refusal(thief, "POST", PODS.format("kube-system"), pod)


async def test_services_of_the_operator_have_no_address(thief: Api, cluster: Cluster):
    owner, path = await cluster.submit(), SERVICES.format(cluster.namespace)
    external = {"type": "ExternalName", "externalName": "example.com"}
    for spec in ({"ports": [{"port": 80}]}, HEADLESS["spec"] | {"externalIPs": ["192.0.2.1"]}, external):
        service = owned(HEADLESS, owner) | {"spec": spec}
        assert "only headless Services" in await refusal(thief, "POST", path, service)


async def test_jobs_are_deleted_only_after_they_finished(thief: Api, cluster: Cluster):
    await cluster.submit("running", ttlSecondsAfterFinished=0)
    await cluster.submit("kept")
    for name in ("running", "kept"):
        assert "only finished jobs" in await refusal(thief, "DELETE", f"{cluster.jobs}/{name}")
    finished = {"status": {"completionTime": "2026-01-01T00:00:00Z"}}
    await thief.patch(f"{cluster.jobs}/running/status", finished)
    await thief.delete(f"{cluster.jobs}/running")


@pytest.fixture
async def author(granted: ControlPlane, helm: Helm, namespace: str) -> AsyncIterator[Api]:
    """Return a client of a user who may create jobs but no pods; the policy for authors is installed."""
    forbid = ["hostPath", "privileged", "hostNamespaces", "serviceAccounts"]
    values: Json = {
        "watchNamespaces": [namespace],
        "jobPolicy": {"authorMayCreatePods": True, "forbid": forbid},
    }
    rendered = yaml.safe_load_all(helm("template", "authors", str(CHART), given=values))
    items = [each for each in rendered if each and each["kind"] in FENCE]
    manifests = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    kubectl = granted.kubectl
    kubectl("create", "role", "jobs", "--verb=*", "--resource=dtj.dtj.dev", f"--namespace={namespace}")
    kubectl("create", "rolebinding", "jobs", "--role=jobs", "--user=alice", f"--namespace={namespace}")
    kubectl("apply", "-f", "-", given=manifests)
    async with rest.connect(granted, "alice") as api:
        yield api
    kubectl("delete", "-f", "-", given=manifests)


def asking_for(container: Json | None = None, **pod: Any) -> Json:
    """Return a job whose template has these fields."""
    body = job("new")
    spec = body["spec"]["template"]["spec"]
    spec["containers"][0] |= container or {}
    spec |= pod
    return body


def first(**fields: Any) -> Json:
    """Return an init container with these fields."""
    return {"name": "first", "image": "a", **fields}


PRIVILEGED: Json = {"securityContext": {"privileged": True}}
CLAIM: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
SCRATCH: Json = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": CLAIM}}}
FORBIDDEN = [
    ("hostPath volumes", asking_for(volumes=[{"name": "a", "hostPath": {"path": "/"}}])),
    ("hostPath volumes", job("new", checkpoint={"volume": {"hostPath": {"path": "/"}}})),
    ("privileged containers", asking_for(PRIVILEGED)),
    ("hostPath volumes", asking_for(volumes=[SCRATCH, {"name": "a", "hostPath": {"path": "/"}}])),
    ("privileged containers", asking_for(initContainers=[first(), first(name="second", **PRIVILEGED)])),
    ("privileged containers", asking_for(initContainers=[first(restartPolicy="Always", **PRIVILEGED)])),
    ("privileged containers", asking_for(ephemeralContainers=[first(**PRIVILEGED)])),
    ("hostNetwork, hostPID", asking_for(hostPID=True)),
    ("hostNetwork, hostPID", asking_for(hostIPC=True)),
    ("hostNetwork, hostPID", asking_for(hostNetwork=True)),
    ("ServiceAccounts other", asking_for(serviceAccountName="builder")),
    ("ServiceAccounts other", asking_for(serviceAccount="builder")),
]


async def test_author_of_a_job_needs_the_rights_of_its_pods(
    author: Api, granted: ControlPlane, cluster: Cluster
):
    assert "you need the right to create pods" in await refusal(author, "POST", cluster.jobs, job("new"))

    kubectl, where = granted.kubectl, f"--namespace={cluster.namespace}"
    kubectl("create", "role", "pods", "--verb=create", "--resource=pods", where)
    kubectl("create", "rolebinding", "pods", "--role=pods", "--user=alice", where)
    await author.create_patiently(cluster.jobs, job())
    for words, body in FORBIDDEN:
        assert words in await refusal(author, "POST", cluster.jobs, body)
    allowed = asking_for(
        volumes=[SCRATCH], initContainers=[first()], hostIPC=False, serviceAccountName="default"
    )
    await author.call("POST", cluster.jobs, allowed, query=DRY)

    # Another release may serve another namespace.
    await cluster.api.call("POST", JOBS.format("default"), FORBIDDEN[0][1], query=DRY)

    # A user who only suspends or scales a job does not choose its pods.
    kubectl("delete", "rolebinding", "pods", where)
    await author.patch(f"{cluster.jobs}/job", {"spec": {"suspend": True}})
