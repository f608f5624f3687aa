"""What `kubectl dtj doctor --try` does with a cluster whose pods are played by the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dtj_client.doctor.checks import Result
from dtj_client.doctor.trial import trial
from dtj_client.errors import GoneError
from dtj_client.kube.kubectl import Kubectl

Json = dict[str, Any]
MEMBERS: list[Json] = [
    {"shm": 2 << 30, "memory": None, "done": True},
    {"shm": 2 << 30, "memory": None, "resolved_s": 1.2, "connected": True, "done": True},
]


class Cluster(Kubectl):
    """Its pods run at once and have said what `members` and `outside` are; None: the pods wait.

    stored   the jobs that are not deleted yet
    """

    def __init__(self, members: list[Json] | None, outside: Json | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "said", {2: members, 1: None if outside is None else [outside]})
        object.__setattr__(self, "stored", {})

    said: dict[int, list[Json] | None]
    stored: dict[str, Json]

    quotas: list[Json] = []

    def items(self, kind: str, *options: str) -> list[Json]:
        return self.quotas if kind == "resourcequotas" else []

    def create(self, manifest: Json) -> Json:
        self.stored[manifest["metadata"]["name"]] = manifest
        return manifest

    def delete(self, kind: str, name: str) -> None:
        del self.stored[name]

    def job(self, name: str) -> Json:
        return {"status": {"message": "0 of 2 pods are ready"}}

    def pods(self, name: str) -> list[Json]:
        count = self.stored[name]["spec"]["replicas"]
        phase = "Pending" if self.said[count] is None else "Running"
        return [
            {
                "metadata": {"name": f"{name}-{index}"},
                "spec": {"nodeName": f"node-{index}"},
                "status": {"phase": phase, "podIP": "10.0.0.7"},
            }
            for index in range(count)
        ]

    def run(self, *words: str, given: str | None = None) -> str:
        job, _, index = words[1].rpartition("-")
        found = self.said[self.stored[job]["spec"]["replicas"]]
        assert found is not None
        # One line each, as the probe prints them; a half-written one at the end.
        return "".join(f"{json.dumps({key: value})}\n" for key, value in found[int(index)].items()) + '{"a'


def test_pods_ask_for_what_a_quota_demands() -> None:
    cluster = Cluster(MEMBERS)
    quota = {"spec": {"hard": {"limits.cpu": "8", "requests.nvidia.com/gpu": "4"}}}
    object.__setattr__(cluster, "quotas", [quota])
    found = trial(cluster, sleep=never)
    next(found)
    ((_, job),) = cluster.stored.items()
    (trainer,) = job["spec"]["template"]["spec"]["containers"]
    assert trainer["resources"] == {"limits": {"cpu": "100m"}, "requests": {"cpu": "100m"}}
    found.close()


def test_pods_run_where_those_of_a_template_do_without_its_gpus() -> None:
    trainer = {"name": "trainer", "image": "me/train:1", "securityContext": {"runAsUser": 7}}
    trainer["resources"] = {"limits": {"memory": "512Gi", "nvidia.com/gpu": 8}}
    pod = {"nodeSelector": {"gpu": "h100"}, "imagePullSecrets": [{"name": "a"}], "containers": [trainer]}
    labels = {"team": "a", "kueue.x-k8s.io/queue-name": "b"}
    template = {"metadata": {"labels": labels}, "spec": {"replicas": 16, "template": {"spec": pod}}}
    cluster = Cluster(MEMBERS)
    found = trial(cluster, template=template, sleep=never)
    next(found)
    ((_, job),) = cluster.stored.items()
    made = job["spec"]["template"]["spec"]
    (container,) = made.pop("containers")
    assert (job["metadata"]["labels"], job["spec"]["replicas"]) == ({"team": "a"}, 2)
    assert made == {"nodeSelector": {"gpu": "h100"}, "imagePullSecrets": [{"name": "a"}]}
    assert (container["image"], container["securityContext"]) == ("me/train:1", {"runAsUser": 7})
    assert container["resources"] == {"limits": {"memory": "2Gi"}, "requests": {"memory": "2Gi"}}
    found.close()


def test_quotas_that_the_user_may_not_list_demand_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def items(self: Cluster, kind: str, *_options: str) -> list[Json]:
        raise self.error(f'{kind} is forbidden: User "u" cannot list resource "{kind}"'.encode())

    monkeypatch.setattr(Cluster, "items", items)
    assert lines(Cluster(MEMBERS, {"connected": False, "done": True}))[0].startswith("ok")


def never(_seconds: float) -> None:
    raise AssertionError("all pods have answered")


def lines(cluster: Cluster, sleep: Callable[[float], None] = never) -> list[str]:
    found = [str(each) for each in trial(cluster, sleep=sleep)]
    assert not cluster.stored, "the jobs are deleted"
    return found


def test_good_cluster() -> None:
    assert lines(Cluster(MEMBERS, {"connected": False, "done": True})) == [
        "ok   pods: they start, here on node-0 and node-1",
        "ok   shared memory: 2.0 GiB at /dev/shm",
        "ok   name resolution: replica 1 found replica 0 after 1.2 s",
        "ok   network: replica 1 connected to replica 0",
        "ok   network policies: enforced, a pod outside the job could not connect to it",
    ]


@pytest.mark.parametrize(
    ("zero", "one", "reached", "said"),
    [
        ({}, {}, True, "network policies: not enforced"),
        ({"shm": 64 << 20}, {}, False, "shared memory: 0.1 GiB at /dev/shm"),
        ({"memory": 512 << 20}, {}, False, "but the memory limit of the namespace is 0.5 GiB"),
        ({}, {"connected": False}, False, "network: replica 1 cannot connect to replica 0"),
        (
            {},
            {"unresolved": "doctor-0.doctor: not known"},
            False,
            "name resolution: doctor-0.doctor: not known",
        ),
    ],
)
def test_what_is_bad_says_how_to_fix_it(zero: Json, one: Json, reached: bool, said: str) -> None:
    cluster = Cluster([MEMBERS[0] | zero, MEMBERS[1] | one], {"connected": reached, "done": True})
    bad = next(each for each in trial(cluster, sleep=never) if each.result is Result.BAD)
    assert said in bad.text
    assert bad.fix


def test_pod_that_cannot_connect_proves_nothing_if_no_pod_can() -> None:
    *_, last = lines(
        Cluster([MEMBERS[0], MEMBERS[1] | {"connected": False}], {"connected": False, "done": True})
    )
    assert last.startswith("?    network policies: unknown")


def test_outside_pod_gets_the_address_of_replica_0() -> None:
    cluster = Cluster(MEMBERS, {"connected": True, "done": True})
    started = [dict(cluster.stored) for _ in trial(cluster, sleep=never)][-1]
    _, outside = started.values()
    (container,) = outside["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == "10.0.0.7"


def test_pods_that_do_not_start_are_deleted_too() -> None:
    (only,) = lines(Cluster(None), sleep=lambda _: None)
    assert "no answer (Pending: 0 of 2 pods are ready)" in only


def test_pods_that_are_refused_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(Cluster, "pods", lambda *_: [])
    monkeypatch.setattr(Cluster, "job", lambda *_: {"status": {"message": "must specify limits.cpu"}})
    (only,) = lines(Cluster(None), sleep=waits.append)
    assert only.startswith("BAD  pods: no answer (no pod was created: must specify limits.cpu)\n     fix: ")
    assert len(waits) < 30


def test_image_that_cannot_be_pulled_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "container trainer of pod a-0: ErrImagePull: manifest unknown"
    ready = {"type": "PodsReady", "status": "False", "reason": "ImagePullFailed", "message": said}
    job = {"status": {"phase": "Pending", "message": said, "conditions": [ready]}}
    monkeypatch.setattr(Cluster, "job", lambda *_: job)
    waits: list[float] = []
    (only,) = lines(Cluster(None), sleep=waits.append)
    assert only.startswith(f"BAD  pods: no answer (Pending: {said})\n     fix: ")
    assert len(waits) < 20


def test_pods_that_fail_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their job has to stay until then, and may be gone when it is deleted."""
    waits: list[float] = []
    failed = {"status": {"phase": "Failed", "message": "python3: not found"}}
    kept: list[int] = []

    def delete(cluster: Cluster, _kind: str, name: str) -> None:
        kept.append(cluster.stored.pop(name)["spec"]["ttlSecondsAfterFinished"])
        raise GoneError(f"there is no job {name}")

    monkeypatch.setattr(Cluster, "job", lambda *_: failed)
    monkeypatch.setattr(Cluster, "delete", delete)
    (only,) = lines(Cluster(None), sleep=waits.append)
    assert only.startswith("BAD  pods: no answer (Pending: python3: not found)\n     fix: ")
    assert (len(waits), kept) == (0, [300])


def test_ctrl_c_deletes_what_was_started() -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    cluster = Cluster(None)
    with pytest.raises(KeyboardInterrupt):
        list(trial(cluster, sleep=interrupt))
    assert not cluster.stored
