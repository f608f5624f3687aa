"""What `kubectl dtj doctor` says about a cluster."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from dtj_client.doctor.checks import Result, examine
from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Kubectl

Json = dict[str, Any]


def groups(*names: str) -> Json:
    """The groups of APIs of a server with ours and these."""
    versions = {"dtj.dev": "v1alpha1"} | dict.fromkeys(names, "v1")
    return {"groups": [{"name": name, "versions": [{"version": each}]} for name, each in versions.items()]}


def policy(name: str, types: list[str], **labels: str) -> Json:
    """A NetworkPolicy for the pods with these labels; without any for all."""
    selector = {"matchLabels": labels} if labels else {}
    return {"metadata": {"name": name}, "spec": {"podSelector": selector, "policyTypes": types}}


def answers(**changed: Any) -> dict[str, Any]:
    """What a good cluster answers, by the kind that is asked for."""
    good = {
        "config": "prod",
        "--raw": groups("cilium.io"),
        "deployments": {"items": [{"metadata": {"namespace": "dtj"}, "status": {"readyReplicas": 2}}]},
        "nodes": {"items": [{"status": {"allocatable": {"nvidia.com/gpu": "8"}}}, {"status": {}}]},
        "namespace": {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
        "resourcequotas": {"items": []},
        "limitranges": {"items": []},
        "endpointslices": {"items": [{"endpoints": [{"conditions": {"ready": True}}, {}]}]},
        "networkpolicies": {"items": [policy("ingress", ["Ingress"]), policy("one", ["Egress"], app="a")]},
    }
    return good | changed


class Cluster(Kubectl):
    """Answers by the kind; `ClientError` is raised. `forbidden` are verbs and kinds."""

    def __init__(self, known: Mapping[str, Any], forbidden: str = "") -> None:
        super().__init__(options=("--namespace=team",))
        object.__setattr__(self, "known", known)
        object.__setattr__(self, "forbidden", forbidden)

    known: Mapping[str, Any]
    forbidden: str

    def elsewhere(self, namespace: str) -> Kubectl:
        assert namespace == "kube-system"
        return self

    def run(self, *words: str, given: str | None = None) -> str:
        answer = self.known[words[0] if words[0] == "config" else words[1]]
        if isinstance(answer, ClientError):
            raise answer
        return answer if isinstance(answer, str) else json.dumps(answer)

    def may(self, verb: str, kind: str) -> bool:
        return f"{verb} {kind}" != self.forbidden


def test_good_cluster() -> None:
    assert [str(each) for each in examine(Cluster(answers()))] == [
        "ok   cluster: context prod",
        "ok   API: dtj.dev/v1alpha1",
        "ok   rights: submit, follow and delete jobs",
        "ok   operator: 2 pods are ready in namespace dtj",
        "ok   gpus: 8 nvidia.com/gpu on 1 of 2 nodes",
        "ok   pod security: namespace team enforces restricted",
        "ok   quotas: 0 in this namespace, none is used up",
        "ok   shared memory: jobs get half their memory limit at /dev/shm, without a limit 2 GiB a process",
        "ok   name resolution: 2 pods of kube-dns are ready",
        "ok   outgoing connections: no NetworkPolicy of this namespace restricts all pods",
        "ok   network policies: Cilium is installed, which enforces them",
        "ok   queues: none, this cluster has no Kueue",
    ]


def test_accelerators_of_each_maker_are_counted() -> None:
    amounts = (
        {"amd.com/gpu": "8", "rdma/hca": "1k"},
        {"amd.com/gpu": "8", "gpu.intel.com/xe": "0"},
        {"habana.ai/gaudi": "4", "nvidia.com/mig-1g.5gb": "7", "volcano.sh/vgpu-memory": "64k"},
    )
    nodes = {"items": [{"status": {"allocatable": {"cpu": "4", **each}}} for each in amounts]}
    found = [str(each) for each in examine(Cluster(answers(nodes=nodes)))]
    (said,) = (each for each in found if "gpus" in each)
    assert said == (
        "ok   gpus: 16 amd.com/gpu on 2 of 3 nodes, 4 habana.ai/gaudi on 1 of 3 nodes, "
        "7 nvidia.com/mig-1g.5gb on 1 of 3 nodes, 64000 volcano.sh/vgpu-memory on 1 of 3 nodes"
    )


NOT_READY = {"conditions": {"ready": False}}
INACTIVE = {"type": "Active", "status": "False", "message": "there is no ClusterQueue gpus"}
STOPPED = {"metadata": {"name": "team-a"}, "status": {"conditions": [INACTIVE]}}
FULL = {"metadata": {"name": "q"}, "status": {"hard": {"pods": "4"}, "used": {"pods": "4"}}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"--raw": {"groups": []}}, "the cluster has no dtj.dev"),
        (
            {"--raw": {"groups": [{"name": "dtj.dev", "versions": [{"version": "v1"}]}]}},
            "has dtj.dev/v1, this",
        ),
        ({"deployments": {"items": []}}, "operator: there is none"),
        ({"deployments": {"items": [{"metadata": {"namespace": "dtj"}}]}}, "operator: no pod is ready"),
        ({"resourcequotas": {"items": [FULL]}}, "quotas: used up: pods of q (4)"),
        ({"endpointslices": {"items": [{"endpoints": [NOT_READY]}]}}, "no pod of kube-dns is ready"),
        (
            {
                "--raw": groups("kueue.x-k8s.io", "cilium.io"),
                "localqueues.kueue.x-k8s.io": {"items": [STOPPED]},
            },
            "queues: team-a admits no job: there is no ClusterQueue gpus",
        ),
    ],
)
def test_what_is_bad_says_how_to_fix_it(changed: Json, said: str) -> None:
    (bad,) = [each for each in examine(Cluster(answers(**changed))) if each.result is Result.BAD]
    assert said in bad.text
    assert bad.fix


def test_policy_that_may_cut_off_the_pods_of_a_job_is_named() -> None:
    denies = {"items": [policy("default-deny", ["Ingress", "Egress"])]}
    (found,) = [e for e in examine(Cluster(answers(networkpolicies=denies))) if e.result is Result.UNKNOWN]
    assert found.text.startswith("outgoing connections: default-deny restricts those of all pods")
    assert "docs/security.md#network" in found.fix


def test_missing_right_is_named() -> None:
    (bad,) = [e for e in examine(Cluster(answers(), "create configmaps")) if e.result is Result.BAD]
    assert bad.text == "rights: you may not create configmaps"


def test_right_that_training_does_not_need_is_not_bad() -> None:
    """It would keep `--try` from starting its pods."""
    found = [e for e in examine(Cluster(answers(), "list events")) if e.result is not Result.GOOD]
    assert [str(each) for each in found] == [
        "?    rights: submit, follow and delete jobs; without list events, nothing shows what kubelets say"
    ]


def test_rights_are_not_blamed_if_the_cluster_has_no_such_kind() -> None:
    cluster = Cluster(answers(**{"--raw": {"groups": []}}), "create distributedtrainingjobs.dtj.dev")
    (rights,) = [each for each in examine(cluster) if each.text.startswith("rights:")]
    assert rights.result is Result.UNKNOWN


def test_what_the_user_may_not_see_is_unknown_and_not_bad() -> None:
    refused = ClientError("alice may not list nodes here")
    found = list(examine(Cluster(answers(nodes=refused))))
    assert [str(each) for each in found if each.result is not Result.GOOD] == [
        "?    gpus: alice may not list nodes here"
    ]


def test_what_only_a_pod_can_find_out_names_the_flag() -> None:
    refused = ClientError("alice may not list endpointslices here")
    small = {"type": "Container", "default": {"memory": "512Mi"}}
    limits = {"items": [{"metadata": {"name": "small"}, "spec": {"limits": [small]}}]}
    changed = answers(**{"--raw": groups(), "endpointslices": refused, "limitranges": limits})
    memory, names, policies = (
        str(each) for each in examine(Cluster(changed)) if each.result is Result.UNKNOWN
    )
    assert "a container gets 512Mi (limit range small), towards which /dev/shm counts\n     fix: " in memory
    assert names.startswith("?    name resolution: alice may not list endpointslices here\n")
    assert policies.startswith("?    network policies: the API does not say whether")
    assert all("kubectl dtj doctor --try" in each for each in (names, policies))


def test_queues_say_how_many_jobs_wait() -> None:
    queue = {"metadata": {"name": "a"}, "status": {"pendingWorkloads": 3, "admittedWorkloads": 1}}
    changed = {"--raw": groups("kueue.x-k8s.io"), "localqueues.kueue.x-k8s.io": {"items": [queue]}}
    *_, last = examine(Cluster(answers(**changed)))
    assert str(last) == "ok   queues: a: 1 admitted, 3 waiting"


def test_cluster_that_cannot_be_reached_is_the_only_line() -> None:
    broken = ClientError("kubectl cannot reach a cluster", "check it")
    (only,) = examine(Cluster(answers(**{"--raw": broken})))
    assert (only.result, only.fix) == (Result.BAD, "check it")


def test_other_context_and_a_pod_without_one_are_named() -> None:
    def first(known: Json, *options: str) -> str:
        cluster = Cluster(known)
        object.__setattr__(cluster, "options", options)
        return next(examine(cluster)).text

    assert first(answers(), "--context=other") == "cluster: context other"
    assert first(answers(config=ClientError("no current context"))) == "cluster: the one of this pod"


def test_quota_that_forbids_what_jobs_do_not_need_is_not_used_up() -> None:
    none = {"services.nodeports": "0"}
    forbids = {"metadata": {"name": "q"}, "status": {"hard": none, "used": none}}
    said = [str(each) for each in examine(Cluster(answers(resourcequotas={"items": [forbids]})))]
    assert "ok   quotas: 1 in this namespace, none is used up" in said


@pytest.mark.parametrize(
    ("resource", "spec", "said"),
    [
        (
            "requests.nvidia.com/gpu",
            {},
            "?    quotas: used up for some pods: requests.nvidia.com/gpu of q (4)",
        ),
        ("pods", {"scopes": ["BestEffort"]}, "?    quotas: used up for some pods: pods of q (4)"),
        ("count/services", {"scopes": []}, "BAD  quotas: used up: count/services of q (4)"),
        ("services.nodeports", {}, "ok   quotas: 1 in this namespace, none is used up"),
        ("persistentvolumeclaims", {}, "ok   quotas: 1 in this namespace, none is used up"),
    ],
)
def test_quota_that_is_used_up_matters_if_each_job_needs_it(resource: str, spec: Json, said: str) -> None:
    amounts = {resource: "4"}
    quota = {"metadata": {"name": "q"}, "spec": spec, "status": {"hard": amounts, "used": amounts}}
    found = [str(each) for each in examine(Cluster(answers(resourcequotas={"items": [quota]})))]
    assert [each for each in found if each.startswith(said)]
