"""The life of a job on a real API server, from the first pod to the deletion of the last child."""

from __future__ import annotations

import pytest

from tests.integration.api import POLICIES, SERVICES
from tests.integration.kubelet import Kubelet
from tests.integration.operator.conftest import Cluster
from tests.support.predicates import condition, phase

pytestmark = pytest.mark.usefixtures("operator")
Json = dict[str, object]


def of(job: Json, kind: str) -> dict[str, str]:
    """Return one of the job's conditions."""
    found: list[dict[str, str]] = [c for c in job["status"]["conditions"] if c["type"] == kind]  # type: ignore[index]
    return found[0]


async def test_job_runs_from_pending_to_succeeded(cluster: Cluster, kubelet: Kubelet):
    kubelet.starts = False
    await cluster.submit()
    await kubelet.until(lambda pods: set(pods) == {"job-0", "job-1"})
    pending = await cluster.until(phase("Pending", "Starting"))
    assert pending["status"]["worldSize"] == 2

    for name in ("job-0", "job-1"):
        await kubelet.start(name)
    running = await cluster.until(lambda job: condition("PodsReady")(job) and phase("Running")(job))
    assert running["status"]["ready"] == "2/2"

    for name in ("job-0", "job-1"):
        await kubelet.finish(name)
    done = await cluster.until(phase("Succeeded"))
    assert of(done, "Complete")["reason"] == "AllRanksSucceeded"
    assert done["status"]["completionTime"] >= done["status"]["startTime"]
    assert done["status"]["replicaStatuses"] == {"ready": 0, "active": 0, "succeeded": 2, "failed": 0}
    assert done["status"]["restarts"]["total"] == 0

    await cluster.api.until_gone(f"{SERVICES.format(cluster.namespace)}/job")
    await cluster.api.until_gone(f"{POLICIES.format(cluster.namespace)}/job")
    assert set(kubelet.pods) == {"job-0", "job-1"}, "the logs of finished pods stay"


async def test_pods_find_each_other(cluster: Cluster, kubelet: Kubelet):
    job = await cluster.submit(masterPort=2345)
    pods = await kubelet.until_running("job-0", "job-1")

    service = await cluster.api.get(f"{SERVICES.format(cluster.namespace)}/job")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    labels = pods["job-1"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert labels["dtj.dev/replica-index"] == "1"
    assert (pods["job-1"]["spec"]["hostname"], pods["job-1"]["spec"]["subdomain"]) == ("job-1", "job")
    env = {each["name"]: each.get("value") for each in pods["job-1"]["spec"]["containers"][0]["env"]}
    assert env["MASTER_ADDR"] == f"job-0.job.{cluster.namespace}.svc"
    assert (env["MASTER_PORT"], env["WORLD_SIZE"], env["RANK"]) == ("2345", "2", "1")
    policy = await cluster.api.get(f"{POLICIES.format(cluster.namespace)}/job")
    for child in (service, policy, *pods.values()):
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == job["metadata"]["uid"]
        assert owner["controller"] is True


async def test_exit_code_1_restarts_all_pods(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit()
    first = await kubelet.until_running("job-0", "job-1")

    await kubelet.finish("job-1", 1, message="Traceback ...\nRuntimeError: boom")

    job = await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1)
    second = await kubelet.until_running("job-0", "job-1")
    assert {pod["metadata"]["uid"] for pod in first.values()}.isdisjoint(
        pod["metadata"]["uid"] for pod in second.values()
    )
    assert job["status"]["restarts"]["counted"] == 1
    failure = job["status"]["failure"]
    assert (failure["replica"], failure["exitCode"], failure["node"]) == (1, 1, "node-1")
    assert "RuntimeError: boom" in failure["message"]


async def test_attempts_never_overlap(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit()
    await kubelet.until_running("job-0", "job-1")
    kubelet.holds = {"job-0"}  # it stops slowly

    await kubelet.finish("job-1", 1)
    await kubelet.until(lambda pods: "deletionTimestamp" in pods["job-0"]["metadata"] and "job-1" not in pods)
    # Another job starts and ends meanwhile, and no pod of the new attempt may exist.
    await cluster.submit("other", replicas=1)
    await kubelet.until(lambda pods: "other-0" in pods)
    assert set(kubelet.pods) == {"job-0", "other-0"}

    await kubelet.confirm_stopped("job-0")
    await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1)


async def test_exit_code_78_fails_the_job_at_once(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit()
    await kubelet.until_running("job-0", "job-1")

    await kubelet.finish("job-0", 78, message="no such recipe")

    job = await cluster.until(phase("Failed"))
    assert of(job, "Failed")["reason"] == "RecoveryRule"
    assert job["status"]["attempt"] == 0
    assert job["status"]["failure"]["exitCode"] == 78
    await kubelet.until(
        lambda pods: set(pods) == {"job-0"}
    )  # the running pod is deleted, the failed pod stays with its log


async def test_spent_budget_fails_the_job_and_names_the_culprit(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit(recovery={"maxRestarts": 1, "backoffSeconds": 0})
    for attempt in (0, 1):
        await cluster.until(lambda job, n=attempt: phase("Running")(job) and job["status"]["attempt"] == n)
        await kubelet.until_running("job-0", "job-1")
        await kubelet.finish("job-1", 3, message="RuntimeError: out of luck")

    job = await cluster.until(phase("Failed"))
    failed = of(job, "Failed")
    assert failed["reason"] == "RestartBudgetSpent"
    for words in ("rank 1", "node-1", "exited with code 3", "out of luck", "maxRestarts is 1"):
        assert words in failed["message"]
    for reason in ("Restarting", "RestartBudgetSpent"):
        assert "out of luck" in (await cluster.until_event(reason))["note"]


async def test_deleted_pod_is_a_disruption_that_costs_nothing(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit(recovery={"maxRestarts": 0, "backoffSeconds": 0})
    await kubelet.until_running("job-0", "job-1")
    await cluster.until(phase("Running"))  # a pod that is deleted before all have started is simply recreated

    await cluster.api.delete(f"{cluster.pods}/job-1")

    job = await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1)
    assert (job["status"]["restarts"]["counted"], job["status"]["restarts"]["disruptions"]) == (0, 1)


async def test_suspended_job_deletes_its_pods_and_can_be_resumed(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit()
    await kubelet.until_running("job-0", "job-1")

    await cluster.change(suspend=True)
    await cluster.until(lambda job: phase("Suspended")(job) and condition("Suspended")(job))
    await kubelet.until(lambda pods: not pods)
    assert await cluster.api.get(f"{SERVICES.format(cluster.namespace)}/job")

    placement = {"metadata": {"labels": {"queue": "a"}}, "spec": {"nodeSelector": {"zone": "b"}}}
    await cluster.change(suspend=False, template=placement)
    job = await cluster.until(lambda job: phase("Running")(job) and condition("Suspended", "False")(job))
    pods = await kubelet.until_running("job-0", "job-1")
    assert pods["job-0"]["spec"]["nodeSelector"] == {"zone": "b"}
    assert pods["job-0"]["metadata"]["labels"]["queue"] == "a"
    assert job["status"]["restarts"]["total"] == 0


async def test_deadline_fails_the_job(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit(activeDeadlineSeconds=1)

    job = await cluster.until(phase("Failed"))

    assert of(job, "Failed")["reason"] == "DeadlineExceeded"
    await kubelet.until(lambda pods: not pods)


async def test_finished_job_is_deleted_after_its_ttl(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit(ttlSecondsAfterFinished=1)
    await kubelet.until_running("job-0", "job-1")
    for name in ("job-0", "job-1"):
        await kubelet.finish(name)

    await cluster.api.until_gone(f"{cluster.jobs}/job")

    await kubelet.until(lambda pods: not pods)


@pytest.mark.parametrize(
    ("policy", "left"), [("Running", {"job-0"}), ("All", set()), ("None", {"job-0", "job-1"})]
)
async def test_clean_up_after_rank_0_is_done(cluster: Cluster, kubelet: Kubelet, policy: str, left: set[str]):
    await cluster.submit(cleanPodPolicy=policy, successPolicy={"replicas": [0]})
    await kubelet.until_running("job-0", "job-1")
    await kubelet.finish("job-0")

    job = await cluster.until(phase("Succeeded"))
    assert of(job, "Complete")["reason"] == "SuccessPolicy"
    await kubelet.until(lambda pods: set(pods) == left)
    if policy == "None":
        await cluster.api.get(f"{POLICIES.format(cluster.namespace)}/job")  # there as long as a pod runs
        await kubelet.finish("job-1")
    await cluster.api.until_gone(f"{SERVICES.format(cluster.namespace)}/job")
    await cluster.api.until_gone(f"{POLICIES.format(cluster.namespace)}/job")


async def test_deletion_leaves_nothing(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit()
    await kubelet.until_running("job-0", "job-1")

    await cluster.api.delete(f"{cluster.jobs}/job")

    await kubelet.until(lambda pods: not pods)
    await cluster.api.until_gone(f"{SERVICES.format(cluster.namespace)}/job")
    await cluster.api.until_gone(f"{POLICIES.format(cluster.namespace)}/job")
    assert len(kubelet.born) == 2, "nothing came back"


async def test_job_of_another_manager_is_left_alone(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit("theirs", managedBy="kueue.x-k8s.io/multikueue")
    await cluster.submit("ours")

    await cluster.until(phase("Running"), "ours")

    assert "status" not in await cluster.job("theirs")
    assert set(kubelet.pods) == {"ours-0", "ours-1"}


async def test_nothing_is_written_if_nothing_happens(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit("still")
    await cluster.until(condition("PodsReady"), "still")
    before = await cluster.job("still")
    # Events that change nothing, and another job that starts and ends.
    await cluster.api.patch(f"{cluster.pods}/still-0", {"metadata": {"annotations": {"a": "b"}}})
    await cluster.submit("busy")
    await kubelet.until(lambda pods: {"busy-0", "busy-1"} <= set(pods))
    await cluster.until(condition("PodsReady"), "busy")
    for name in ("busy-0", "busy-1"):
        await kubelet.finish(name)
    await cluster.until(phase("Succeeded"), "busy")

    assert (await cluster.job("still"))["metadata"]["resourceVersion"] == before["metadata"][
        "resourceVersion"
    ]
