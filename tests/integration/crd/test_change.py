"""Every rule for updates: what can change while a job runs, what while it is suspended, and what never."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.api import JOBS
from tests.integration.crd import test_creation
from tests.integration.crd.jobs import ABSENT, ACCEPTED, job, pod, put, recovery
from tests.integration.direct import Direct, RefusedError
from tests.support.kubectl import Json, Kubectl

CRD = Path(__file__).parents[3] / "crds/dtj.dev_distributedtrainingjobs.yaml"
RUNNING, SUSPENDED = False, True
PLACES = (
    "labels, annotations, nodeSelector, tolerations, affinity, topologySpreadConstraints and schedulingGates"
)
TEMPLATE = (
    "the template can be changed only while the job is suspended (set spec.suspend to true first), "
    f"and of it only {PLACES}"
)

CONTAINER = {"name": "trainer", "image": "a", "command": ["a"]}
OTHER_IMAGE = pod(containers=[{**CONTAINER, "image": "b"}])
DATA = {"name": "data", "emptyDir": {}}
BEFORE: Json = {
    **pod(
        containers=[CONTAINER],
        volumes=[DATA],
        serviceAccountName="a",
        terminationGracePeriodSeconds=5,
        securityContext={"runAsUser": 1},
        imagePullSecrets=[{"name": "a"}],
    ),
    "checkpoint": {"volume": {"nfs": {"server": "a", "path": "/"}}},
    **recovery(rules=[{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [7]}}]),
}
PLACEMENT: Json = {
    "template.metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
    **pod(
        nodeSelector={"a": "b"},
        tolerations=[{"operator": "Exists"}],
        affinity={"nodeAffinity": {}},
        schedulingGates=[{"name": "a"}],
        topologySpreadConstraints=[{"topologyKey": "a"}],
    ),
}

TABLE: list[tuple[str, bool, Json, str]] = [
    ("suspend", RUNNING, {"suspend": True}, ACCEPTED),
    ("the deadline", RUNNING, {"activeDeadlineSeconds": 5}, ACCEPTED),
    ("the TTL", RUNNING, {"ttlSecondsAfterFinished": 5}, ACCEPTED),
    ("the budget", RUNNING, recovery(maxRestarts=5), ACCEPTED),
    ("the budget without progress", RUNNING, recovery(maxRestartsWithoutProgress=1), ACCEPTED),
    ("the back-off", RUNNING, recovery(backoffSeconds=9), ACCEPTED),
    ("nodeLostSeconds", RUNNING, recovery(nodeLostSeconds=5), ACCEPTED),
    ("avoidNodeAfterFaults", RUNNING, recovery(avoidNodeAfterFaults=9), ACCEPTED),
    ("avoidNodeAfterFaults off", RUNNING, recovery(avoidNodeAfterFaults="Never"), ACCEPTED),
    ("replicas", RUNNING, {"replicas": 2}, "replicas cannot be changed without spec.elastic; delete"),
    ("replicas, suspended", SUSPENDED, {"replicas": 2}, "replicas cannot be changed without spec.elastic"),
    (
        "elastic, added later",
        RUNNING,
        {"elastic": {"minReplicas": 1, "maxReplicas": 2}},
        "elastic cannot be changed",
    ),
    ("the hang timeout", RUNNING, {"hang": {"timeoutSeconds": 9}}, "hang cannot be changed"),
    ("the scope", RUNNING, recovery(scope="Job"), "recovery.scope cannot be changed"),
    ("processes", RUNNING, {"processesPerReplica": 2}, "processesPerReplica cannot be changed"),
    ("the port", RUNNING, {"masterPort": 2000}, "masterPort cannot be changed"),
    ("the manager", RUNNING, {"managedBy": "a.b/c"}, "managedBy cannot be changed"),
    ("the manager, suspended", SUSPENDED, {"managedBy": "a.b/c"}, "managedBy cannot be changed"),
    ("the clean-up", RUNNING, {"cleanPodPolicy": "All"}, "cleanPodPolicy cannot be changed"),
    ("success", RUNNING, {"successPolicy": {"replicas": [0]}}, "successPolicy cannot be changed"),
    ("the scheduling", RUNNING, {"scheduling": {"gang": "None"}}, "scheduling cannot be changed"),
    ("the network", RUNNING, {"network.policy": "None"}, "network.policy cannot be changed"),
    (
        "peers, added later",
        RUNNING,
        {"network": {"allowFrom": [{"podSelector": {}}]}},
        "network.allowFrom cannot be changed",
    ),
    ("the rules", RUNNING, recovery(rules=[]), "recovery.rules cannot be changed"),
    ("the rules, removed", RUNNING, recovery(rules=ABSENT), "recovery.rules cannot be changed"),
    (
        "a part of the checkpoint",
        RUNNING,
        {"checkpoint.volume.nfs.server": "b"},
        "checkpoint cannot be changed",
    ),
    ("the checkpoint's source", RUNNING, {"checkpoint.volume": {"csi": {}}}, "checkpoint cannot be changed"),
    ("the checkpoint, removed", SUSPENDED, {"checkpoint": ABSENT}, "checkpoint cannot be changed"),
    ("the image", RUNNING, OTHER_IMAGE, TEMPLATE),
    (
        "one field replaced by another",
        RUNNING,
        pod(containers=[{"name": "trainer", "image": "a", "args": ["a"]}]),
        TEMPLATE,
    ),
    (
        "one volume source replaced by another",
        RUNNING,
        pod(volumes=[{"name": "data", "configMap": {}}]),
        TEMPLATE,
    ),
    *((f"{path}", RUNNING, {path: value}, TEMPLATE) for path, value in PLACEMENT.items()),
    *((f"{path}, suspended", SUSPENDED, {path: value}, ACCEPTED) for path, value in PLACEMENT.items()),
    ("placement and resume in one update", SUSPENDED, {**PLACEMENT, "suspend": False}, ACCEPTED),
    ("placement and suspend in one update", RUNNING, {**PLACEMENT, "suspend": True}, TEMPLATE),
    ("the image, suspended", SUSPENDED, OTHER_IMAGE, TEMPLATE),
    ("image and resume in one update", SUSPENDED, {**OTHER_IMAGE, "suspend": False}, TEMPLATE),
    ("a sidecar, suspended", SUSPENDED, pod(initContainers=[{"name": "side"}]), TEMPLATE),
    (
        "a volume source, suspended",
        SUSPENDED,
        pod(volumes=[{"name": "data", "configMap": {}}]),
        TEMPLATE,
    ),
    ("the service account, suspended", SUSPENDED, pod(serviceAccountName="b"), TEMPLATE),
    ("its old name, suspended", SUSPENDED, pod(serviceAccount="b"), TEMPLATE),
    ("hostNetwork, suspended", SUSPENDED, pod(hostNetwork=True), TEMPLATE),
    ("the user, suspended", SUSPENDED, pod(securityContext={"runAsUser": 2}), TEMPLATE),
    (
        "the user, added, suspended",
        SUSPENDED,
        pod(securityContext={"fsGroup": 2, "runAsUser": 1}),
        TEMPLATE,
    ),
    ("a pull secret, suspended", SUSPENDED, pod(imagePullSecrets=[{"name": "b"}]), TEMPLATE),
    ("a name of a host, suspended", SUSPENDED, pod(hostAliases=[{"ip": "1.2.3.4"}]), TEMPLATE),
    ("a claim of a device, suspended", SUSPENDED, pod(resourceClaims=[{"name": "b"}]), TEMPLATE),
    ("the PodGroup, suspended", SUSPENDED, pod(schedulingGroup={"podGroupName": "b"}), TEMPLATE),
    ("who answers evictions, suspended", SUSPENDED, pod(evictionResponders=[{"name": "b"}]), TEMPLATE),
    ("the resolver, suspended", SUSPENDED, pod(dnsConfig={"nameservers": ["b"]}), TEMPLATE),
    ("the grace period, suspended", SUSPENDED, pod(terminationGracePeriodSeconds=ABSENT), TEMPLATE),
]


@pytest.mark.parametrize(
    ("suspended", "changes", "words"), [pytest.param(*row[1:], id=row[0]) for row in TABLE]
)
def test_change(direct: Direct, namespace: str, suspended: bool, changes: Json, words: str):
    check_change(direct, namespace, job(**BEFORE, suspend=suspended), changes, words)


def check_change(direct: Direct, namespace: str, before: Json, changes: Json, words: str) -> None:
    """Create a job and update it; fail if that is not accepted, or not rejected with these words."""
    after = copy.deepcopy(before)
    for path, value in changes.items():
        put(after["spec"], path, value)
    folder = JOBS.format(namespace)
    path = f"{folder}/{direct.create(folder, before)['metadata']['name']}"

    if words == ACCEPTED:
        assert direct.replace(path, after)["metadata"]["generation"] == 2
        return
    with pytest.raises(RefusedError) as refused:
        direct.replace(path, after)
    assert words in str(refused.value)


def test_change_of_a_checkpoint_source_that_only_some_clusters_have(direct: Direct, namespace: str):
    before = job(checkpoint={"volume": {"iscsi": {"targetPortal": "a", "iqn": "a", "lun": 0}}})
    changes = {"checkpoint.volume": {"fc": {"targetWWNs": ["a"], "lun": 0}}}
    check_change(direct, namespace, before, changes, "checkpoint cannot be changed")


ELASTIC: Json = {"replicas": 2, "elastic": {"minReplicas": 2, "maxReplicas": 3}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"replicas": 3}, ACCEPTED, id="within the limits"),
        pytest.param({"replicas": 4}, "must be between elastic.minReplicas and", id="too many"),
        pytest.param({"replicas": 1}, "must be between elastic.minReplicas and", id="too few"),
        pytest.param({"elastic.maxReplicas": 4}, "elastic cannot be changed", id="another limit"),
        pytest.param({"elastic": ABSENT}, "elastic cannot be changed", id="limits removed"),
    ],
)
def test_change_of_an_elastic_job(direct: Direct, namespace: str, changes: Json, words: str):
    check_change(direct, namespace, job(**ELASTIC), changes, words)


@pytest.mark.parametrize(
    ("spec", "replicas", "words"),
    [
        pytest.param(ELASTIC, 3, ACCEPTED, id="within the limits"),
        pytest.param(ELASTIC, 4, "must be between elastic.minReplicas and", id="too many"),
        pytest.param({}, 2, "replicas cannot be changed without spec.elastic", id="a fixed size"),
    ],
)
def test_scale(direct: Direct, kubectl: Kubectl, spec: Json, replicas: int, words: str):
    path = JOBS.format(kubectl.namespace)
    direct.create(path, job(**spec))

    command = ("scale", "dtj", "digits", f"--replicas={replicas}")
    if words == ACCEPTED:
        assert "scaled" in kubectl(*command)
        assert direct.get(f"{path}/digits")["spec"]["replicas"] == replicas
    else:
        assert words in kubectl.refusal(*command)


def rule_messages(node: Any) -> Iterator[str]:
    """Yield the message of every CEL rule below a part of the schema."""
    if isinstance(node, dict):
        yield from (rule["message"] for rule in node.get("x-kubernetes-validations", ()))
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from rule_messages(child)


def test_every_rule_rejects_a_row():
    rows = [str(row[-1]) for row in (*TABLE, *test_creation.TABLE)]
    refusals = [words for words in rows if words != ACCEPTED]
    reserved = "this variable is set by the operator"  # its rows check for the name of the variable instead
    untested = [
        message
        for message in rule_messages(yaml.safe_load(CRD.read_text()))
        if not message.startswith(reserved) and not any(words in message for words in refusals)
    ]
    assert untested == []
