"""Whatever prevents a job from running is in its status, with the message of the component that refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.api import SERVICES, ApiError
from tests.integration.kubelet import Kubelet
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.conftest import job as submitted
from tests.integration.operator.test_lifecycle import of
from tests.support.predicates import condition, phase

pytestmark = pytest.mark.usefixtures("operator")
Json = dict[str, Any]
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


async def test_foreign_service_is_not_touched(cluster: Cluster, kubelet: Kubelet):
    services = SERVICES.format(cluster.namespace)
    theirs: Json = {"metadata": {"name": "job"}, "spec": {"ports": [{"port": 80}]}}
    before = await cluster.api.create(services, theirs)
    await cluster.submit()

    job = await cluster.until(condition("PodsReady", "False", "NameConflict"))

    assert "Service job exists and does not belong to this job" in of(job, "PodsReady")["message"]
    assert kubelet.born == []
    after = await cluster.api.get(f"{services}/job")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_job_with_a_queue_waits_for_kueue(cluster: Cluster, kubelet: Kubelet):
    """This cluster has no Kueue; tests/integration/kueue has."""
    body = submitted()
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    await cluster.api.create(cluster.jobs, body)

    waiting = await cluster.until(condition("Suspended", "True", "QueueUnavailable"))

    assert "install Kueue" in waiting["status"]["message"]
    assert kubelet.born == []


async def test_foreign_pod_is_not_touched(cluster: Cluster, kubelet: Kubelet):
    kubelet.starts = False
    theirs: Json = {"metadata": {"name": "job-1"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    before = await cluster.api.create(cluster.pods, theirs)
    await cluster.submit()

    job = await cluster.until(condition("PodsReady", "False", "NameConflict"))

    assert "job-1" in of(job, "PodsReady")["message"]
    after = await cluster.api.get(f"{cluster.pods}/job-1")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_quota_error_is_quoted_and_waited_for(cluster: Cluster, kubelet: Kubelet):
    quotas = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    await cluster.api.create(quotas, {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "1"}}})
    # No controller fills this in here.
    used: Json = {"status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}}
    await cluster.api.patch(f"{quotas}/small/status", used)
    await cluster.submit()

    job = await cluster.until(condition("PodsReady", "False", "QuotaExceeded"))
    assert "exceeded quota: small, requested: pods=1, used: pods=1" in of(job, "PodsReady")["message"]
    assert "exceeded quota" in (await cluster.until_event("QuotaExceeded"))["note"]

    await cluster.api.delete(f"{quotas}/small")
    await cluster.until(phase("Running"))


async def test_pod_security_error_is_quoted(cluster: Cluster):
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    await cluster.api.patch(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"labels": label}})
    container = {"name": "trainer", "image": "a", "securityContext": {"privileged": True}}
    await cluster.submit(template={"spec": {"containers": [container]}})

    job = await cluster.until(condition("PodsReady", "False", "PodRejected"))

    assert "privileged" in of(job, "PodsReady")["message"]
    assert phase("Pending")(job)


def webhook(namespace: str) -> Json:
    """Return a webhook about the pods of a namespace, at a port on which nothing listens."""
    asks = {
        "name": "policy.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {"metadata": {"name": namespace}, "webhooks": [asks]}


async def until_asked(cluster: Cluster) -> None:
    """Wait until the API server asks the webhook."""
    probe: Json = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    while True:
        try:
            await cluster.api.call("POST", cluster.pods, probe, query={"dryRun": "All"})
        except ApiError as error:
            if "failed calling webhook" not in str(error):
                raise
            return
        await asyncio.sleep(0.02)  # between two requests


async def test_webhook_that_fails_is_named_until_it_works(cluster: Cluster, kubelet: Kubelet):
    await cluster.api.create(WEBHOOKS, webhook(cluster.namespace))
    try:
        await until_asked(cluster)
        await cluster.submit()

        job = await cluster.until(condition("PodsReady", "False", "PodRejected"))
        assert 'failed calling webhook "policy.example.com"' in of(job, "PodsReady")["message"]
        assert "failed calling webhook" in (await cluster.until_event("PodRejected"))["note"]
    finally:
        await cluster.api.delete(f"{WEBHOOKS}/{cluster.namespace}")
    await kubelet.until_running("job-0", "job-1")


async def test_priority_class_that_does_not_exist_is_named(cluster: Cluster):
    container = {"name": "trainer", "image": "a"}
    await cluster.submit(template={"spec": {"containers": [container], "priorityClassName": "urgent"}})

    job = await cluster.until(condition("PodsReady", "False", "PodRejected"))

    said = "no PriorityClass with name urgent was found; create that class"
    assert said in of(job, "PodsReady")["message"]
    assert said in (await cluster.until_event("PodRejected"))["note"]


async def test_pods_pass_the_restricted_standard_by_themselves(cluster: Cluster, kubelet: Kubelet):
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    await cluster.api.patch(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"labels": label}})
    await cluster.submit()
    await kubelet.until_running("job-0", "job-1")


async def test_error_about_an_invalid_pod_is_quoted(cluster: Cluster):
    container = {"name": "trainer", "image": "a", "ports": [{"containerPort": 99999}]}
    await cluster.submit(template={"spec": {"containers": [container]}})

    job = await cluster.until(condition("PodsReady", "False", "PodRejected"))

    assert (
        "spec.containers[0].ports[0].containerPort: Invalid value: 99999" in of(job, "PodsReady")["message"]
    )


async def test_misspelled_field_of_the_template_is_reported_with_its_path(cluster: Cluster, kubelet: Kubelet):
    gpu = {"limits": {"nvidia.com/gpu": "1"}}
    await cluster.submit(template={"spec": {"containers": [{"name": "a", "image": "a", "resource": gpu}]}})

    job = await cluster.until(condition("PodsReady", "False", "PodRejected"))

    assert 'unknown field "spec.containers[0].resource"' in of(job, "PodsReady")["message"]
    assert kubelet.born == []


async def test_missing_secret_is_in_the_status_and_in_an_event(cluster: Cluster, kubelet: Kubelet):
    kubelet.starts = False
    await cluster.submit()
    await kubelet.until(lambda pods: "job-0" in pods)
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "s3-login" not found'}
    status = {"name": "trainer", "image": "trainer:1", "imageID": "", "ready": False, "restartCount": 0}
    await kubelet.set_status("job-0", {"containerStatuses": [{**status, "state": {"waiting": waiting}}]})

    job = await cluster.until(condition("PodsReady", "False", "PodRejected"))

    assert 'secret "s3-login" not found' in of(job, "PodsReady")["message"]
    assert 'secret "s3-login" not found' in (await cluster.until_event("PodRejected"))["note"]
