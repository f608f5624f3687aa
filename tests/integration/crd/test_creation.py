"""Every rule for new jobs: what the API server accepts, and with which message it rejects the rest."""

from __future__ import annotations

import pytest

from tests.integration.api import JOBS
from tests.integration.crd.jobs import ABSENT, ACCEPTED, checkpoint, codes, env, job, pod, recovery, rule
from tests.integration.direct import Direct, RefusedError
from tests.support.kubectl import Json

RESERVED = (
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("NODE_RANK", "NNODES", "NPROC_PER_NODE", "PET_NNODES", "DTJ_JOB"),
)
ODD = {"action": "Restart", "onPodConditions": [{"type": "Odd"}]}
MISSPELT = {
    "action": "FailJob",
    "onExitCodes": {"operator": "In", "values": [7], "containerName": "trianer"},
}
PROMETHEUS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
    "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["prometheus"]}]},
}
NFS = {"nfs": {"server": "a", "path": "/"}}


def resources(**amounts: Json | list[Json] | None) -> Json:
    """A job whose container asks for these."""
    return pod(containers=[{"name": "trainer", "image": "a", "resources": amounts}])


TABLE: list[tuple[str, Json, str]] = [
    ("the minimal job", {}, ACCEPTED),
    ("no template", {"template": ABSENT}, "spec.template: Required value"),
    ("a field that does not exist", {"replica": 2}, 'unknown field "spec.replica"'),
    ("a deep field that does not exist", recovery(maxRestart=2), 'unknown field "spec.recovery.maxRestart"'),
    # names
    ("a name of letters, digits and dashes", {"name": "a-1"}, ACCEPTED),
    ("a name that starts with a digit", {"name": "1a"}, "start with a letter"),
    ("a name with a dot", {"name": "a.b"}, "metadata.name must consist of lower case letters, digits"),
    ("a name of 61 characters for one pod", {"name": "n" * 61}, ACCEPTED),
    ("a name of 62 characters", {"name": "n" * 62}, "metadata.name: Too long"),
    ("a name of 61 characters for 11 pods", {"name": "n" * 61, "replicas": 11}, "metadata.name is too long"),
    (
        "a name of 59 characters for 10,000 pods",
        {"name": "n" * 59, "replicas": 10000},
        "metadata.name is too long",
    ),
    ("a name of 60 characters for 11 pods", {"name": "n" * 60, "replicas": 11}, ACCEPTED),
    # size
    ("one replica", {"replicas": 1}, ACCEPTED),
    ("zero replicas", {"replicas": 0}, "spec.replicas in body should be greater than or equal to 1"),
    ("a negative number of replicas", {"replicas": -3}, "greater than or equal to 1"),
    ("a million replicas", {"replicas": 1000000}, "less than or equal to 10000"),
    ("replicas as text", {"replicas": "2"}, 'spec.replicas: Invalid value: "string"'),
    ("1,024 processes", {"processesPerReplica": 1024}, ACCEPTED),
    ("1,025 processes", {"processesPerReplica": 1025}, "a whole number from 1 to 1024"),
    ("processes left to the accelerators", {"processesPerReplica": "auto"}, ACCEPTED),
    (
        "zero processes",
        {"processesPerReplica": 0},
        "processesPerReplica must be a whole number from 1 to 1024",
    ),
    ("processes as text", {"processesPerReplica": "8"}, "without quotes, or auto"),
    ("another port", {"masterPort": 23456}, ACCEPTED),
    ("the port of the agent", {"masterPort": 29400}, "masterPort must not be 29400"),
    ("a privileged port", {"masterPort": 80}, "greater than or equal to 1024"),
    (
        "a deadline of 63 bits",
        {"activeDeadlineSeconds": 2**62},
        "activeDeadlineSeconds in body should be less than",
    ),
    (
        "a deadline of pods above 31 bits",
        pod(activeDeadlineSeconds=2**31),
        "spec.template.spec.activeDeadlineSeconds in body should be less than or equal to 2147483647",
    ),
    ("a priority above 31 bits", pod(priority=2**31), "spec.template.spec.priority"),
    ("an elastic job", {"replicas": 2, "elastic": {"minReplicas": 1, "maxReplicas": 4}}, ACCEPTED),
    (
        "an elastic job at its largest",
        {"replicas": 4, "elastic": {"minReplicas": 1, "maxReplicas": 4}},
        ACCEPTED,
    ),
    (
        "the largest elastic job",
        {"replicas": 10000, "elastic": {"minReplicas": 10000, "maxReplicas": 10000}},
        ACCEPTED,
    ),
    (
        "elastic without maxReplicas",
        {"elastic": {"minReplicas": 1}},
        "spec.elastic.maxReplicas: Required value",
    ),
    (
        "elastic without minReplicas",
        {"elastic": {"maxReplicas": 1}},
        "spec.elastic.minReplicas: Required value",
    ),
    (
        "more replicas than allowed",
        {"replicas": 5, "elastic": {"minReplicas": 1, "maxReplicas": 4}},
        "replicas of an elastic job must be between elastic.minReplicas and elastic.maxReplicas",
    ),
    (
        "fewer replicas than allowed",
        {"replicas": 1, "elastic": {"minReplicas": 2, "maxReplicas": 4}},
        "replicas of an elastic job must be between",
    ),
    (
        "minReplicas above maxReplicas",
        {"replicas": 3, "elastic": {"minReplicas": 4, "maxReplicas": 3}},
        "elastic.minReplicas must not exceed elastic.maxReplicas",
    ),
    (
        "a name of 61 characters that may grow to 11 pods",
        {"name": "n" * 61, "elastic": {"minReplicas": 1, "maxReplicas": 11}},
        "metadata.name is too long",
    ),
    # template
    ("no container", pod(containers=[]), "template.spec.containers in body should have at least 1 items"),
    ("containers left out", pod(containers=ABSENT), "spec.template.spec.containers: Required value"),
    ("a container without a name", pod(containers=[{"image": "a"}]), "containers[0].name: Required value"),
    (
        "a container whose name is empty",
        pod(containers=[{"name": ""}]),
        "containers[0].name in body should be at least 1 chars long",
    ),
    ("two containers", pod(containers=[{"name": "trainer"}, {"name": "logs"}]), ACCEPTED),
    ("two containers with the same name", pod(containers=[{"name": "a"}, {"name": "a"}]), "Duplicate value"),
    (
        "a number among the arguments",
        pod(containers=[{"name": "a", "args": ["--n", 3]}]),
        "args[1] in body must",
    ),
    ("arguments as one text", pod(containers=[{"name": "a", "args": "--n 3"}]), "must be of type array"),
    ("a command as one text", pod(containers=[{"name": "a", "command": "x y"}]), "must be of type array"),
    (
        "an image that is a number",
        pod(containers=[{"name": "a", "image": 1}]),
        "image in body must be of type",
    ),
    (
        "a variable that is a number",
        pod(containers=[{"name": "a", "env": [{"name": "A", "value": 1}]}]),
        "env[0].value in body must be of type string",
    ),
    (
        "fields that are null, as in a Pod",
        pod(containers=[{"name": "a", "args": None, "image": None, "env": [{"name": "A", "value": None}]}]),
        ACCEPTED,
    ),
    ("restartPolicy Never", pod(restartPolicy="Never"), ACCEPTED),
    ("restartPolicy Always", pod(restartPolicy="Always"), "restartPolicy must be Never or absent"),
    (
        "restartPolicy OnFailure",
        pod(restartPolicy="OnFailure"),
        "limit the restarts with spec.recovery.maxRestarts",
    ),
    ("a hostname", pod(hostname="a"), "hostname, subdomain and hostnameOverride are set by the operator"),
    ("a subdomain", pod(subdomain="a"), "remove them from the template"),
    ("a hostnameOverride", pod(hostnameOverride="a"), "remove them from the template"),
    ("variables of the user", env("LR", "RANKS", "MY_DTJ_X"), ACCEPTED),
    ("a variable twice", env("LR", "LR"), "env[1]: Duplicate value"),
    *(
        (
            f"the variable {name}",
            env("LR", name),
            f"{name} is set by the operator (as are PET_*, DTJ_* and all",
        )
        for name in RESERVED
    ),
    *(
        (
            f"the variable {name} of an init container",
            pod(initContainers=[{"name": "fetch", "env": [{"name": name, "value": "0"}]}]),
            "initContainers[0].env[0].name: Invalid value",
        )
        for name in ("RANK", "DTJ_JOB", "PET_NNODES")
    ),
    ("a label of the user", {"template.metadata.labels": {"team": "a"}}, ACCEPTED),
    (
        "a label reserved for the operator",
        {"template.metadata.labels": {"team": "a", "dtj.dev/job-name": "a"}},
        "start with dtj.dev/ are set",
    ),
    (
        "amounts as a Pod takes them",
        resources(
            limits={"memory": "16Gi", "cpu": 0.5, "a.b/c": 8}, requests={"cpu": "500m", "memory": "1e9"}
        ),
        ACCEPTED,
    ),
    ("no amounts", resources(limits=None, claims=[{"name": "a"}]), ACCEPTED),
    (
        "an amount with the unit of another system",
        resources(limits={"memory": "16GB"}),
        "spec.template.spec.containers[0].resources.limits.memory in body should match",
    ),
    (
        "a request without a number",
        resources(requests={"cpu": "all"}),
        "spec.template.spec.containers[0].resources.requests.cpu in body should match",
    ),
    (
        "a size of a volume with the unit of another system",
        pod(volumes=[{"name": "data", "emptyDir": {"sizeLimit": "1GB"}}]),
        "spec.template.spec.volumes[0].emptyDir.sizeLimit in body should match",
    ),
    ("a volume of the user", pod(volumes=[{"name": "data", "emptyDir": {}}]), ACCEPTED),
    (
        "a volume name reserved for the operator",
        pod(volumes=[{"name": "dtj-shm", "emptyDir": {}}]),
        "choose another name",
    ),
    ("a pod field newer than the schema", pod(notYetInvented={"a": 1}), ACCEPTED),
    # recovery
    ("maxRestarts 0", recovery(maxRestarts=0), ACCEPTED),
    ("a negative number of restarts", recovery(maxRestarts=-1), "greater than or equal to 0"),
    ("negative without progress", recovery(maxRestartsWithoutProgress=-1), "greater than or equal to 0"),
    (
        "a hang timeout",
        {"hang": {"timeoutSeconds": 600, "workingSeconds": 3600, "action": "Report"}},
        ACCEPTED,
    ),
    ("a rack", {"scheduling": {"topology": {"key": "rack", "mode": "Required"}}}, ACCEPTED),
    (
        "a rack of its own",
        {"scheduling": {"topology": {"key": "rack", "mode": "Required", "exclusive": True}}},
        ACCEPTED,
    ),
    (
        "a rack of its own that pods may leave",
        {"scheduling": {"topology": {"key": "rack", "exclusive": True}}},
        "exclusive needs mode: Required",
    ),
    (
        "a topology without a key",
        {"scheduling": {"topology": {}}},
        "spec.scheduling.topology.key: Required value",
    ),
    ("an unknown kind of gang", {"scheduling": {"gang": "Always"}}, 'supported values: "Auto", "None"'),
    ("a hang timeout of 0 seconds", {"hang": {"timeoutSeconds": 0}}, "greater than or equal to 1"),
    ("a rank that may work for 0 seconds", {"hang": {"workingSeconds": 0}}, "greater than or equal to 1"),
    ("an unknown hang action", {"hang": {"action": "Ignore"}}, 'supported values: "Restart", "Report"'),
    ("a scope", recovery(scope="Replica"), ACCEPTED),
    ("a scope that does not exist", recovery(scope="Pod"), '"Auto", "Replica", "Job"'),
    ("nodes that never count as lost", recovery(nodeLostSeconds="Never"), ACCEPTED),
    ("nodes that are never avoided", recovery(avoidNodeAfterFaults="Never"), ACCEPTED),
    ("pods that are never forced to end", recovery(terminationSeconds="Never"), ACCEPTED),
    ("terminationSeconds 0", recovery(terminationSeconds=0), "at least 1 and without quotes, or Never"),
    ("nodeLostSeconds 0", recovery(nodeLostSeconds=0), "at least 1 and without quotes, or Never"),
    ("nodeLostSeconds as text", recovery(nodeLostSeconds="40"), "without quotes, or Never"),
    ("avoidNodeAfterFaults -1", recovery(avoidNodeAfterFaults=-1), "at least 1 and without quotes, or Never"),
    ("a negative back-off", recovery(backoffSeconds=-1), "greater than or equal to 0"),
    ("a back-off of an hour", recovery(backoffSeconds=3600), "less than or equal to 300"),
    ("a rule for a condition", rule(onPodConditions=[{"type": "A"}]), ACCEPTED),
    ("rules with names", recovery(rules=[{**ODD, "name": "a"}, {**ODD, "name": "b"}, ODD]), ACCEPTED),
    ("two rules with the same name", recovery(rules=[{**ODD, "name": "a"}] * 2), "have the same name"),
    (
        "a rule for a container",
        rule(onExitCodes={"operator": "In", "values": [7], "containerName": "trainer"}),
        ACCEPTED,
    ),
    (
        "a rule for an init container",
        {
            **pod(initContainers=[{"name": "fetch"}]),
            **rule(onExitCodes={"operator": "In", "values": [7], "containerName": "fetch"}),
        },
        ACCEPTED,
    ),
    (
        "a rule for a container that does not exist",
        recovery(rules=[MISSPELT]),
        "containerName of a rule must be the name of a container",
    ),
    (
        "one of two rules for a container that does not exist",
        {**pod(initContainers=[{"name": "fetch"}]), **recovery(rules=[ODD, MISSPELT])},
        "containerName of a rule must be the name of a container",
    ),
    ("a rule without a criterion", rule(), "exactly one of onExitCodes and onPodConditions"),
    (
        "a rule with two criteria",
        rule(onExitCodes={"operator": "In", "values": [7]}, onPodConditions=[{"type": "A"}]),
        "exactly one of onExitCodes and onPodConditions",
    ),
    (
        "a rule without an action",
        recovery(rules=[{"onPodConditions": []}]),
        "rules[0].action: Required value",
    ),
    ("an action that does not exist", rule("Retry"), '"FailJob", "RestartUncounted", "Restart"'),
    ("a rule for exit codes", codes(7, 42), ACCEPTED),
    ("a rule for code 0", codes(0), "onExitCodes.values[0] in body should be greater than or equal to 1"),
    ("a rule for code 256", codes(256), "less than or equal to 255"),
    ("a rule for no code", codes(), "at least 1 items"),
    (
        "exit codes without an operator",
        rule(onExitCodes={"values": [7]}),
        "onExitCodes.operator: Required value",
    ),
    ("exit codes without values", rule(onExitCodes={"operator": "In"}), "onExitCodes.values: Required value"),
    ("an operator that does not exist", codes(1, operator="="), '"In", "NotIn"'),
    # checkpoint
    ("a checkpoint volume", checkpoint({"persistentVolumeClaim": {"claimName": "a"}}), ACCEPTED),
    ("a checkpoint without an fsGroup", checkpoint(NFS, fsGroupPolicy="None"), ACCEPTED),
    ("an fsGroupPolicy that does not exist", checkpoint(NFS, fsGroupPolicy="File"), '"Trainer", "None"'),
    ("a checkpoint without a volume", {"checkpoint": {}}, "spec.checkpoint.volume: Required value"),
    ("a volume without a source", checkpoint({}), "at least 1 properties"),
    ("a volume with two sources", checkpoint({**NFS, "csi": {}}), "must have at most 1 item"),
    ("a path of 512 characters", checkpoint(NFS, mountPath="/" + "a" * 511), ACCEPTED),
    ("a path of 513 characters", checkpoint(NFS, mountPath="/" + "a" * 512), "Too long"),
    ("a relative path", checkpoint(NFS, mountPath="runs"), "mountPath must be an absolute path"),
    ("resume from a job", checkpoint(NFS, resumeFrom={"job": "monday-1"}), ACCEPTED),
    ("resume from a path", checkpoint(NFS, resumeFrom={"path": "default/monday-1/1a2b"}), ACCEPTED),
    ("resume from a path of 512 characters", checkpoint(NFS, resumeFrom={"path": "a" * 512}), ACCEPTED),
    ("resume from a path of 513 characters", checkpoint(NFS, resumeFrom={"path": "a" * 513}), "Too long"),
    ("resume from a job of 61 characters", checkpoint(NFS, resumeFrom={"job": "a" * 61}), ACCEPTED),
    ("resume from a job of 62 characters", checkpoint(NFS, resumeFrom={"job": "a" * 62}), "Too long"),
    ("resume from a path of one folder", checkpoint(NFS, resumeFrom={"path": "best"}), ACCEPTED),
    (
        "resume from a job and a path",
        checkpoint(NFS, resumeFrom={"job": "monday", "path": "a"}),
        "resumeFrom needs exactly one of job",
    ),
    ("resume from nothing", checkpoint(NFS, resumeFrom={}), "resumeFrom needs exactly one of job"),
    (
        "resume from outside the mount",
        checkpoint(NFS, resumeFrom={"path": "a/../../b"}),
        "resumeFrom.path must be relative to mountPath",
    ),
    (
        "resume from an absolute path",
        checkpoint(NFS, resumeFrom={"path": "/a"}),
        "resumeFrom.path must be relative to mountPath",
    ),
    (
        "resume from an invalid name",
        checkpoint(NFS, resumeFrom={"job": "Monday"}),
        "resumeFrom.job must be the name",
    ),
    # the rest
    ("a deadline of 0 seconds", {"activeDeadlineSeconds": 0}, "greater than or equal to 1"),
    ("a TTL of 0 seconds", {"ttlSecondsAfterFinished": 0}, ACCEPTED),
    ("a negative TTL", {"ttlSecondsAfterFinished": -1}, "greater than or equal to 0"),
    ("a cleanPodPolicy that does not exist", {"cleanPodPolicy": "Some"}, '"Running", "All", "None"'),
    ("success of replica 0", {"successPolicy": {"replicas": [0]}}, ACCEPTED),
    ("success of no replica", {"successPolicy": {"replicas": []}}, "at least 1 items"),
    (
        "a success policy without replicas",
        {"successPolicy": {}},
        "spec.successPolicy.replicas: Required value",
    ),
    (
        "success of a replica that does not exist",
        {"successPolicy": {"replicas": [1]}},
        "from 0 to replicas - 1",
    ),
    (
        "success of a replica that an elastic job may lose",
        {"replicas": 3, "elastic": {"minReplicas": 2, "maxReplicas": 3}, "successPolicy": {"replicas": [2]}},
        "successPolicy.replicas must be from 0 to replicas - 1 (elastic: minReplicas - 1)",
    ),
    ("a network policy that does not exist", {"network": {"policy": "Open"}}, '"Isolated", "None"'),
    ("Prometheus as a peer", {"network": {"allowFrom": [PROMETHEUS]}}, ACCEPTED),
    ("a peer without a selector", {"network": {"allowFrom": [{}]}}, "at least 1 properties"),
    (
        "peers without a NetworkPolicy",
        {"network": {"policy": "None", "allowFrom": [PROMETHEUS]}},
        "network.allowFrom needs network.policy Isolated",
    ),
    ("another manager", {"managedBy": "kueue.x-k8s.io/multikueue"}, ACCEPTED),
]


@pytest.mark.parametrize(("changes", "words"), [pytest.param(*row[1:], id=row[0]) for row in TABLE])
def test_creation(direct: Direct, changes: Json, words: str):
    folder = JOBS.format("default")
    if words == ACCEPTED:
        assert direct.create(folder, job(**changes), dry_run=True)["spec"]["replicas"]
        return
    with pytest.raises(RefusedError) as refused:
        direct.create(folder, job(**changes), dry_run=True)
    assert words in str(refused.value)


def test_absent_fields_get_their_defaults(direct: Direct, namespace: str):
    stored = direct.create(JOBS.format(namespace), job(checkpoint={"volume": NFS}))
    assert stored["spec"] == {
        **job()["spec"],
        "replicas": 1,
        "processesPerReplica": "auto",
        "masterPort": 29500,
        "suspend": False,
        "managedBy": "dtj.dev/operator",
        "cleanPodPolicy": "Running",
        "recovery": {
            "scope": "Auto",
            "maxRestarts": 10,
            "windowSeconds": 86400,
            "maxRestartsWithoutProgress": 3,
            "backoffSeconds": 1,
            "nodeLostSeconds": 40,
            "terminationSeconds": 300,
            "avoidNodeAfterFaults": 2,
            "avoidNodeWaitSeconds": 300,
        },
        "hang": {"action": "Restart"},
        "scheduling": {"gang": "Auto"},
        "checkpoint": {"mountPath": "/checkpoints", "fsGroupPolicy": "Trainer", "volume": NFS},
        "network": {"policy": "Isolated"},
    }


def test_condition_of_a_rule_must_be_true_unless_it_says_otherwise(direct: Direct, namespace: str):
    given = job(**rule(onPodConditions=[{"type": "DisruptionTarget"}]))
    stored = direct.create(JOBS.format(namespace), given)
    (found,) = stored["spec"]["recovery"]["rules"]
    assert found["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


def test_template_is_stored_unchanged(direct: Direct, namespace: str):
    variable = {"name": "A", "valueFrom": {"newerSource": {}}}
    spec = {
        "containers": [{"name": "trainer", "image": "a", "env": [variable], "newer": [1, {"a": "b"}]}],
        "volumes": [{"name": "a", "newerSource": {"x": 1}}],
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "newer": {"deep": {"deeper": [1, 2]}},
    }
    changes: Json = {"template.spec": spec}
    stored = direct.create(JOBS.format(namespace), job(**changes))
    assert stored["spec"]["template"]["spec"] == spec
