"""What is created on the cluster to copy code into a claim, and that it is deleted again."""

import hashlib
from typing import Any

import pytest

from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Kubectl
from dtj_client.progress import Progress, ignore
from dtj_client.submission import upload
from dtj_client.submission.manifest import InClaim, Request, job

Json = dict[str, Any]
PLACE = InClaim(claim="runs", path=".dtj/code/1.tar.gz")
TEMPLATE: Json = {
    "spec": {
        "replicas": 8,
        "template": {
            "spec": {
                "nodeSelector": {"gpu": "h100"},
                "tolerations": [{"operator": "Exists"}],
                "imagePullSecrets": [{"name": "registry"}],
                "containers": [
                    {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "1Ti"}}}
                ],
            }
        },
    }
}


class Cluster(Kubectl):
    """Its pods have this phase; `sent` is what came with which words; `stored` has not been deleted yet.

    waits_for  reason of PodsReady
    """

    def __init__(
        self,
        phase: str = "Running",
        refuses: ClientError | None = None,
        claims: str | None = "runs",
        waits_for: str = "Unschedulable",
    ) -> None:
        super().__init__()
        values: Json = {"phase": phase, "refuses": refuses, "claims": claims, "waits_for": waits_for}
        values |= {"stored": {}, "made": [], "sent": [], "slept": []}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    phase: str
    refuses: ClientError | None
    claims: str | None
    waits_for: str
    stored: Json
    made: list[Json]
    sent: list[tuple[bytes, tuple[str, ...]]]
    slept: list[float]

    def run(self, *words: str, given: str | None = None) -> str:
        assert words[:3] == ("get", "persistentvolumeclaims", "runs")
        if self.claims is None:
            raise ClientError("alice may not get persistentvolumeclaims here")
        return self.claims

    def create(self, manifest: Json) -> Json:
        self.stored[manifest["metadata"]["name"]] = manifest
        self.made.append(manifest)
        return manifest

    def delete(self, kind: str, name: str) -> None:
        del self.stored[name]

    def job(self, name: str) -> Json:
        ready = {"type": "PodsReady", "status": "False", "reason": self.waits_for}
        phase = "Failed" if self.phase == "Failed" else "Pending"
        return {"status": {"phase": phase, "message": "claim runs is not bound", "conditions": [ready]}}

    def pods(self, name: str) -> list[Json]:
        return [{"metadata": {"name": f"{name}-0"}, "spec": {}, "status": {"phase": self.phase}}]

    def send(self, data: bytes, *words: str, progress: Progress = ignore) -> None:
        if self.refuses:
            raise self.refuses
        self.sent.append((data, words))


def copied(cluster: Cluster) -> Json:
    """Copy code for a job of the template; return the job that mounted the claim."""
    wanted = job(
        Request(name="digits", command=["train.py"], image="my:1"), with_code=True, template=TEMPLATE
    )
    upload.upload(cluster, wanted, PLACE, b"archive", sleep=cluster.slept.append)
    (made,) = cluster.made
    return made


def test_claim_that_does_not_exist_is_not_waited_for() -> None:
    cluster = Cluster(claims="")
    with pytest.raises(ClientError, match="there is no claim runs in this namespace\n  fix: kubectl get pvc"):
        copied(cluster)
    assert not cluster.made


@pytest.mark.parametrize("claims", ["persistentvolumeclaim/runs", None])
def test_archive_is_sent_to_a_pod_that_runs_where_the_job_may_run(claims: str | None) -> None:
    cluster = Cluster(claims=claims)
    made = copied(cluster)
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert made["spec"]["replicas"] == 1
    assert made["spec"]["checkpoint"]["volume"]["persistentVolumeClaim"] == {"claimName": "runs"}
    assert (pod["nodeSelector"], pod["imagePullSecrets"]) == ({"gpu": "h100"}, [{"name": "registry"}])
    assert container["image"] == "my:1"
    assert container["resources"] == {"limits": {"memory": "256Mi"}}, "it waits for no GPU"
    ((data, words),) = cluster.sent
    assert data == b"archive"
    target = f"{made['spec']['checkpoint']['mountPath']}/{PLACE.path}"
    assert words[:3] == ("exec", "-i", f"{made['metadata']['name']}-0")
    assert words[-2:] == (target, hashlib.sha256(b"archive").hexdigest())
    assert not cluster.stored


def test_pod_has_what_a_policy_of_the_cluster_may_demand_but_no_queue() -> None:
    queue, team = {"kueue.x-k8s.io/queue-name": "gpus"}, {"team": "a"}
    of_pods = {"priorityClassName": "batch", "schedulerName": "packing"}
    wanted = job(Request(name="digits", command=["train.py"], image="my:1"), with_code=True)
    wanted["metadata"] |= {"labels": queue | team, "annotations": {"cost-center": "7"}}
    wanted["spec"]["template"]["metadata"] = {"labels": queue | team, "annotations": {"inject": "false"}}
    wanted["spec"]["template"]["spec"] |= of_pods
    cluster = Cluster()
    upload.upload(cluster, wanted, PLACE, b"archive")
    (made,) = cluster.made
    pod = made["spec"]["template"]
    assert made["metadata"]["labels"] == pod["metadata"]["labels"] == team
    assert made["metadata"]["annotations"].items() >= {("cost-center", "7")}
    assert pod["metadata"]["annotations"] == {"inject": "false"}
    assert of_pods.items() <= pod["spec"].items()


def test_pod_that_does_not_start_is_deleted() -> None:
    cluster = Cluster(phase="Pending")
    with pytest.raises(
        ClientError, match=r"(?s)claim runs started.*Pending: claim runs is not.*describe pvc"
    ):
        copied(cluster)
    assert not cluster.stored


@pytest.mark.parametrize(("reason", "within_s"), [("PodRejected", 5), ("ImagePullFailed", 30)])
def test_refusal_of_the_pod_is_said_at_once(reason: str, within_s: int) -> None:
    cluster = Cluster(phase="Pending", waits_for=reason)
    with pytest.raises(ClientError, match="copies the code to claim runs cannot start: claim runs is not"):
        copied(cluster)
    assert sum(cluster.slept) < within_s
    assert not cluster.stored


def test_job_that_fails_is_not_waited_for() -> None:
    cluster = Cluster(phase="Failed")
    with pytest.raises(ClientError, match="copies the code to claim runs failed: claim runs is not"):
        copied(cluster)
    assert not cluster.slept


@pytest.mark.parametrize(
    ("refuses", "said"),
    [
        (ClientError("[Errno 30] Read-only file system\ncommand terminated"), "file system\n  fix: name a"),
        (ClientError("alice may not create pods/exec here", "ask for a role"), "here\n  fix: ask for a role"),
    ],
)
def test_claim_that_takes_no_file_is_named(refuses: ClientError, said: str) -> None:
    cluster = Cluster(refuses=refuses)
    with pytest.raises(ClientError) as raised:
        copied(cluster)
    assert str(raised.value).startswith("the code was not copied to claim runs: ")
    assert said in str(raised.value)
    assert not cluster.stored
