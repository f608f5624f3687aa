"""The objects of a job: the documented contract, the user's template unchanged, safe defaults."""

from importlib import metadata
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from dtj_operator.model.views import PodSettings
from dtj_operator.plan.children.env import PodContext
from dtj_operator.plan.children.networking import (
    network_policy,
    networking,
    operator_peer,
    service,
    writer_of,
)
from dtj_operator.plan.children.pod import pod_maker
from dtj_operator.plan.children.podgroup import pod_group
from tests.support.builders import NAME, NAMESPACE, UID, JobBuilder, job

param = pytest.param
ON_HOST = job().pod_spec(hostNetwork=True)
METRICS, MASTER = {"name": "metrics", "containerPort": 80}, {"name": "master", "containerPort": 29500}
OPERATOR = operator_peer("ops", {"app": "dtj"})

PVC = {"persistentVolumeClaim": {"claimName": "runs"}}
CHECKPOINTED = job().wants(checkpoint={"mountPath": "/ckpt", "volume": PVC})


def built(builder: JobBuilder, index: int = 0, attempt: int = 0):
    made = builder.job()
    return pod_maker(made, PodContext(attempt=attempt, size=made.replicas, restarts_left=10))(index)


def trainer(builder: JobBuilder, index: int = 0, attempt: int = 0):
    return built(builder, index, attempt)["spec"]["containers"][0]


def environment(builder: JobBuilder, index: int = 0, attempt: int = 0) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in trainer(builder, index, attempt)["env"]}


def test_the_environment_of_the_contract() -> None:
    env = environment(job().replicas(3).wants(masterPort=30000), index=2, attempt=4)

    assert env == {
        "MASTER_ADDR": "digits-0.digits.team-a.svc",
        "MASTER_PORT": "30000",
        "WORLD_SIZE": "3",
        "NODE_RANK": "2",
        "NNODES": "3",
        "NPROC_PER_NODE": "1",
        "RANK": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": "2",
        "PET_MASTER_ADDR": "digits-0.digits.team-a.svc",
        "PET_MASTER_PORT": "30000",
        "PET_MAX_RESTARTS": "0",
        "DTJ_POD": "",  # by reference
        "DTJ_JOB": NAME,
        "DTJ_NAMESPACE": NAMESPACE,
        "DTJ_JOB_UID": UID,
        "DTJ_ATTEMPT": "4",
        "DTJ_REPLICA_INDEX": "2",
        "DTJ_REPLICAS": "3",
        "DTJ_MIN_REPLICAS": "3",
        "DTJ_MAX_REPLICAS": "3",
        "DTJ_PROCESSES": "1",
        "DTJ_AGENT_PORT": "29400",
        "DTJ_MAX_RESTARTS": "10",
        "DTJ_RESTARTS": "0",
        "DTJ_RESTARTS_IN_PLACE": "0",
        "DTJ_RESTART_WINDOW_SECONDS": "86400",
        "DTJ_MAX_RESTARTS_WITHOUT_PROGRESS": "3",
        "DTJ_RESTARTS_WITHOUT_PROGRESS": "0",
        "DTJ_BACKOFF_SECONDS": "1",
        "DTJ_GRACE_SECONDS": "30",
        "DTJ_HANG_ACTION": "Restart",
        "PYTHONUNBUFFERED": "1",
    }


def test_agents_get_the_hang_timeouts_and_action() -> None:
    env = environment(job().wants(hang={"timeoutSeconds": 600, "workingSeconds": 3600, "action": "Report"}))

    assert (env["DTJ_HANG_SECONDS"], env["DTJ_HANG_ACTION"]) == ("600", "Report")
    assert env["DTJ_HANG_WORKING_SECONDS"] == "3600"


def test_the_environment_of_an_elastic_job() -> None:
    fixed = environment(job().replicas(3), attempt=4)
    elastic = environment(job().replicas(3).elastic(2, 5).recovery(maxRestarts=7), attempt=4)

    assert {name: value for name, value in elastic.items() if fixed.get(name) != value} == {
        "PET_NNODES": "2:5",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "digits-0.digits.team-a.svc:29500",
        "PET_RDZV_ID": f"{UID}-4",
        "PET_MAX_RESTARTS": "7",
        "DTJ_MIN_REPLICAS": "2",
        "DTJ_MAX_REPLICAS": "5",
    }
    assert fixed.keys() <= elastic.keys()


def test_with_several_processes_per_replica_no_rank_is_set() -> None:
    env = environment(job().replicas(2).wants(processesPerReplica=4), index=1)

    assert {"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}.isdisjoint(env)
    assert (env["WORLD_SIZE"], env["PET_NPROC_PER_NODE"], env["DTJ_PROCESSES"]) == ("8", "4", "4")


@pytest.mark.parametrize(
    ("resume_from", "folder"),
    [
        param({"job": "monday"}, "/ckpt/team-a/monday", id="a job of the same namespace"),
        param({"path": "archive/best"}, "/ckpt/archive/best", id="a path below the mount"),
        param({"path": "best"}, "/ckpt/best", id="a path of one folder is not a job"),
    ],
)
def test_directories_of_a_checkpointed_job(resume_from: dict[str, str], folder: str) -> None:
    builder = job().wants(checkpoint={"mountPath": "/ckpt", "volume": PVC, "resumeFrom": resume_from})
    env = environment(builder)

    assert env["DTJ_CHECKPOINT_DIR"] == f"/ckpt/team-a/digits/{UID[:8]}"
    assert env["DTJ_RESUME_DIR"] == folder


def test_without_checkpoint_no_directory_is_set() -> None:
    assert {"DTJ_CHECKPOINT_DIR", "DTJ_RESUME_DIR"}.isdisjoint(environment(job()))


@pytest.mark.parametrize(
    ("cpu", "processes", "threads"),
    [
        param("4", 1, "4", id="whole cores"),
        param("4", 2, "2", id="shared by two processes"),
        param("500m", 1, "1", id="at least one"),
        param(None, 1, None, id="no limit: left to the program"),
    ],
)
def test_threads_follow_the_cpu_limit(cpu: str | None, processes: int, threads: str | None) -> None:
    limits = {"cpu": cpu} if cpu else {}
    builder = job().container(resources={"limits": limits}).wants(processesPerReplica=processes)

    assert environment(builder).get("OMP_NUM_THREADS") == threads


def test_users_variables_come_last_to_refer_to_ours_and_override_defaults() -> None:
    own = [{"name": "OMP_NUM_THREADS", "value": "3"}, {"name": "SEED", "value": "$(RANK)"}]
    env = trainer(job().container(env=own, resources={"limits": {"cpu": "8"}}))["env"]

    assert env[-2:] == own
    assert [entry["name"] for entry in env].count("OMP_NUM_THREADS") == 1


def test_identity_of_a_pod() -> None:
    made = built(job().replicas(2), index=1, attempt=3)

    assert made["metadata"]["name"] == made["spec"]["hostname"] == "digits-1"
    assert made["spec"]["subdomain"] == "digits"
    assert made["spec"]["restartPolicy"] == "Never"
    assert made["metadata"]["labels"] == {
        "dtj.dev/job-name": NAME,
        "dtj.dev/job-uid": UID,
        "dtj.dev/replica-index": "1",
        "dtj.dev/attempt": "3",
    }
    assert made["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "dtj.dev/v1alpha1",
            "kind": "DistributedTrainingJob",
            "name": NAME,
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_template_passes_through_unchanged() -> None:
    template = {
        "metadata": {"labels": {"team": "a", "dtj.dev/attempt": "99"}, "annotations": {"note": "x"}},
        "spec": {
            "nodeSelector": {"gpu": "yes"},
            "fieldFromTheFuture": 1,
            "containers": [{"name": "trainer"}],
        },
    }
    builder = job().wants(template=template)
    made = built(builder)

    assert made["metadata"]["labels"]["team"] == "a"
    assert made["metadata"]["labels"]["dtj.dev/attempt"] == "0", "the user cannot set the operator's labels"
    assert made["metadata"]["annotations"] == {"note": "x"}
    assert (made["spec"]["nodeSelector"], made["spec"]["fieldFromTheFuture"]) == ({"gpu": "yes"}, 1)
    assert template["spec"] == builder.spec["template"]["spec"]
    assert "env" not in template["spec"]["containers"][0]  # type: ignore[index]


def test_kubectl_shows_the_log_of_the_trainer_and_not_of_a_sidecar() -> None:
    containers = [{"name": "proxy"}, {"name": "trainer"}]
    key = "kubectl.kubernetes.io/default-container"

    def annotations(given: dict[str, str]) -> object:
        template = {"metadata": {"annotations": given}, "spec": {"containers": containers}}
        return built(job().wants(template=template))["metadata"]["annotations"]

    assert annotations({"note": "x"}) == {key: "trainer", "note": "x"}
    assert annotations({key: "proxy"}) == {key: "proxy"}


def test_container_with_the_name_of_the_trainer_is_left_to_the_api_server() -> None:
    first, second = built(job().pod_spec(containers=[{"name": "a"}, {"name": "a"}]))["spec"]["containers"]
    assert ("env" in first, "env" in second) == (True, False)


def test_wishes_for_the_scheduler_pass_through_beside_what_a_gang_and_a_domain_add() -> None:
    spread = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    given = {
        "topologySpreadConstraints": [spread],
        "priorityClassName": "high",
        "preemptionPolicy": "Never",
        "tolerations": [{"key": "spot", "operator": "Exists"}],
    }
    wanted = job().pod_spec(**given).wants(scheduling={"topology": {"key": "rack"}}).job()
    context = PodContext(attempt=0, size=2, restarts_left=10)
    made = pod_maker(wanted, context, pod_group="digits-0", admitted=PodSettings(), avoid=["n1"])(0)
    assert given.items() <= made["spec"].items()
    assert {"schedulingGroup", "affinity"} <= made["spec"].keys()
    kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)


def test_safe_defaults_for_absent_fields_in_every_container() -> None:
    made = built(
        job().pod_spec(initContainers=[{"name": "fetch"}], containers=[{"name": "a"}, {"name": "b"}])
    )["spec"]

    assert (made["automountServiceAccountToken"], made["enableServiceLinks"]) == (False, False)
    assert made["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in (*made["initContainers"], *made["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize(
    ("builder", "group", "policy"),
    [
        param(job(), None, None, id="no checkpoint volume"),
        param(CHECKPOINTED, 65532, "OnRootMismatch", id="a checkpoint volume"),
        param(CHECKPOINTED.pod_spec(securityContext={"fsGroup": 7}), 7, None, id="the template sets a group"),
        param(
            CHECKPOINTED.pod_spec(securityContext={"fsGroupChangePolicy": "Always"}),
            65532,
            "Always",
            id="the template sets the change policy",
        ),
        param(
            job().wants(checkpoint={"volume": PVC, "fsGroupPolicy": "None"}), None, None, id="switched off"
        ),
    ],
)
def test_group_of_the_volumes_is_set_for_checkpoints_only(
    builder: JobBuilder, group: int | None, policy: str | None
) -> None:
    made = built(builder)["spec"]["securityContext"]

    assert (made.get("fsGroup"), made.get("fsGroupChangePolicy")) == (group, policy)


def security(**fields: object):
    return {"securityContext": fields}


@pytest.mark.parametrize(
    ("builder", "path", "value"),
    [
        param(
            job().pod_spec(automountServiceAccountToken=True),
            "automountServiceAccountToken",
            True,
            id="token wanted",
        ),
        param(
            job().pod_spec(serviceAccountName="s3"),
            "automountServiceAccountToken",
            None,
            id="a service account is set",
        ),
        param(
            job().pod_spec(serviceAccount="s3"),
            "automountServiceAccountToken",
            None,
            id="a service account is set by its old name",
        ),
        param(job().pod_spec(enableServiceLinks=True), "enableServiceLinks", True, id="links wanted"),
        param(
            job().pod_spec(**security(runAsNonRoot=False)),
            "securityContext.runAsNonRoot",
            False,
            id="root allowed",
        ),
        param(
            job().pod_spec(**security(runAsUser=0)), "securityContext.runAsNonRoot", None, id="root requested"
        ),
        param(
            job().container(**security(runAsUser=0)),
            "securityContext.runAsNonRoot",
            None,
            id="root in a container",
        ),
        param(
            job().container(**security(privileged=True)),
            "containers.0.securityContext.allowPrivilegeEscalation",
            None,
            id="a privileged container would be rejected with it",
        ),
        param(
            job().container(**security(capabilities={"add": ["IPC_LOCK"]})),
            "containers.0.securityContext.capabilities",
            {"add": ["IPC_LOCK"], "drop": ["ALL"]},
            id="a capability that is added stays",
        ),
        param(
            job().container(terminationMessagePolicy="File"),
            "containers.0.terminationMessagePolicy",
            "File",
            id="policy",
        ),
    ],
)
def test_fields_of_the_template_override_the_defaults(builder: JobBuilder, path: str, value: object) -> None:
    found = built(builder)["spec"]
    for part in path.split("."):
        found = found[int(part)] if part.isdecimal() else found.get(part)

    assert found == value


def shm(builder: JobBuilder):
    return next((v for v in built(builder)["spec"]["volumes"] if v["name"] == "dtj-shm"), None)


@pytest.mark.parametrize(
    ("builder", "size"),
    [
        param(job(), 2 * 1024**3, id="no limit: 2 GiB per process"),
        param(job().wants(processesPerReplica=3), 6 * 1024**3, id="three processes"),
        param(
            job().container(resources={"limits": {"memory": "4Gi"}}), 2 * 1024**3, id="half the memory limit"
        ),
    ],
)
def test_shared_memory_is_mounted_with_a_size(builder: JobBuilder, size: int) -> None:
    assert shm(builder)["emptyDir"] == {"medium": "Memory", "sizeLimit": str(size)}
    assert {"name": "dtj-shm", "mountPath": "/dev/shm"} in trainer(builder)["volumeMounts"]


def test_shared_memory_volume_of_the_user_is_kept() -> None:
    own = [{"name": "mine", "mountPath": "/dev/shm"}]
    builder = job().container(volumeMounts=own).pod_spec(volumes=[{"name": "mine", "emptyDir": {}}])

    assert shm(builder) is None
    assert trainer(builder)["volumeMounts"] == own


def test_the_checkpoint_volume_is_mounted_in_the_training_container() -> None:
    made = built(CHECKPOINTED)["spec"]

    assert {"name": "dtj-checkpoints", **PVC} in made["volumes"]
    assert {"name": "dtj-checkpoints", "mountPath": "/ckpt"} in made["containers"][0]["volumeMounts"]


def test_another_container_may_mount_the_checkpoint_volume_where_the_trainer_does() -> None:
    mount = {"name": "dtj-checkpoints", "mountPath": "/ckpt"}
    uploader = {"name": "uploader", "image": "example.org/upload:1", "volumeMounts": [mount]}
    trainer = job().spec["template"]["spec"]["containers"][0]
    builder = CHECKPOINTED.pod_spec(containers=[trainer, uploader])

    assert builder.job().error is None
    made = built(builder)
    assert all(mount in container["volumeMounts"] for container in made["spec"]["containers"])
    kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("builder", "policy"),
    [
        param(job(), None, id="pod network"),
        param(
            job().pod_spec(hostNetwork=True),
            "ClusterFirstWithHostNet",
            id="host network: replica 0 needs cluster DNS",
        ),
        param(
            job().pod_spec(hostNetwork=True, dnsPolicy="Default"),
            "Default",
            id="a dnsPolicy in the template is kept",
        ),
    ],
)
def test_dns_policy(builder: JobBuilder, policy: str | None) -> None:
    assert built(builder)["spec"].get("dnsPolicy") == policy


@pytest.mark.parametrize(
    ("builder", "index", "ports"),
    [
        param(ON_HOST, 0, [{"containerPort": 29500}], id="it waits for the others"),
        param(ON_HOST, 1, None, id="another replica"),
        param(ON_HOST.pod_spec(hostNetwork=False), 0, None, id="pod network"),
        param(ON_HOST.wants(masterPort=30000), 0, [{"containerPort": 30000}], id="the job's port"),
        param(ON_HOST.container(ports=[METRICS]), 0, [METRICS, {"containerPort": 29500}], id="beside others"),
        param(ON_HOST.container(ports=[MASTER]), 0, [MASTER], id="declared by the template"),
    ],
)
def test_replica_0_declares_its_port_on_the_network_of_the_node(
    builder: JobBuilder, index: int, ports: list[dict[str, Any]] | None
) -> None:
    """So the scheduler puts no other job there that would wait on the same port."""
    assert built(builder, index)["spec"]["containers"][0].get("ports") == ports


def test_the_service_is_headless_and_publishes_starting_pods() -> None:
    spec = service(job().wants(masterPort=30000).job())["spec"]

    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert {port["name"]: port["port"] for port in spec["ports"]} == {"master": 30000, "agent": 29400}
    assert spec["selector"].items() <= built(job())["metadata"]["labels"].items()


def test_a_job_without_isolation_has_no_network_policy() -> None:
    open_to_all = job().wants(network={"policy": "None"})

    assert networking(job().job(), [OPERATOR]).keys() == {"Service", "NetworkPolicy"}
    assert networking(open_to_all.job(), [OPERATOR]).keys() == {"Service"}


def test_the_network_policy_lets_in_the_jobs_pods_and_the_operator() -> None:
    spec = network_policy(job().job(), [OPERATOR])["spec"]

    assert spec["podSelector"]["matchLabels"].items() <= built(job())["metadata"]["labels"].items()
    assert spec["policyTypes"] == ["Ingress"], "egress stays open: DNS, storage, data sets"
    peers, operator = spec["ingress"]
    assert peers == {"from": [{"podSelector": spec["podSelector"]}]}
    assert operator["ports"] == [{"port": 29400, "protocol": "TCP"}]
    assert operator["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ops"}},
            "podSelector": {"matchLabels": {"app": "dtj"}},
        }
    ]


def test_the_network_policy_lets_other_peers_reach_the_agents_only() -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    everywhere = {"ipBlock": {"cidr": "10.0.0.0/8"}}  # by the installation, for all jobs
    known = job().wants(network={"allowFrom": [prometheus]}).job()
    spec = network_policy(known, [OPERATOR, everywhere])["spec"]

    peers, agents = spec["ingress"]
    assert prometheus not in peers["from"]
    assert agents["from"] == [OPERATOR, everywhere, prometheus]
    assert agents["ports"] == [{"port": 29400, "protocol": "TCP"}]


@pytest.mark.parametrize(
    ("peer", "writer"),
    [
        (("theirs", {"app.kubernetes.io/name": "dtj-operator"}), "the operator in namespace theirs"),
        (
            ("ops", {"app.kubernetes.io/name": "dtj-operator", "app.kubernetes.io/instance": "b"}),
            "the operator in namespace ops",
        ),
        (("ops", {"app.kubernetes.io/name": "dtj-operator"}), "edit"),
        (("monitoring", {"app.kubernetes.io/name": "prometheus"}), "edit"),
    ],
    ids=["another namespace", "another release", "this operator", "no operator"],
)
def test_writer_of_an_edited_child(peer: tuple[str, dict[str, str]], writer: str) -> None:
    ours = network_policy(job().job(), [operator_peer("ops", {"app.kubernetes.io/name": "dtj-operator"})])
    found = network_policy(job().job(), [operator_peer(*peer)])
    times = (("edit", "2026-01-01T00:00:02Z"), ("dtj-operator", "2026-01-01T00:00:01Z"))
    status = {"manager": "status", "time": "2026-01-01T00:00:03Z", "subresource": "status"}
    found["metadata"]["managedFields"] = [*({"manager": name, "time": time} for name, time in times), status]
    assert writer_of(found, ours) == writer


def test_writer_of_a_child_that_names_none() -> None:
    found = service(job().job())
    assert writer_of(found, found) == ""


@pytest.mark.parametrize("version", ["1.31", "1.34", kubernetes_validate.latest_version()])
def test_every_child_is_valid_kubernetes(version: str) -> None:
    limits = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 2}
    builder = CHECKPOINTED.container(resources={"limits": limits}, env=[{"name": "A", "value": "b"}])
    made = builder.job()
    place = PodContext(attempt=0, size=1, restarts_left=1)
    make = pod_maker(made, place, avoid=["node-1", "node-2"], avoid_if_possible=["node-3"])
    children = [
        built(builder),
        *map(make, [0, 1]),
        service(builder.job()),
        network_policy(builder.job(), [OPERATOR]),
    ]

    for child in children:
        kubernetes_validate.validate(child, version, strict=True)


def test_validator_detects_an_unknown_field() -> None:
    broken = built(job())
    broken["spec"]["hostnme"] = "typo"

    assert metadata.version("kubernetes-validate")
    with pytest.raises(kubernetes_validate.ValidationError, match="hostnme"):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("version", "kubernetes"), [("scheduling.k8s.io/v1alpha2", "1.36"), ("scheduling.k8s.io/v1beta1", "1.37")]
)
def test_the_pod_group_fits_the_schema_of_each_version(version: str, kubernetes: str) -> None:
    topology = {"topology": {"key": "rack", "mode": "Required"}}
    given = job().replicas(4).pod_spec(priorityClassName="high").wants(scheduling=topology)
    group = pod_group(given.job(), 3, version)
    kubernetes_validate.validate(group, kubernetes, strict=True)
    assert group["metadata"]["name"] == "digits-3"
    assert {"priorityClassName", "disruptionMode", "schedulingConstraints"} < group["spec"].keys()


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ({}, "preferredDuringSchedulingIgnoredDuringExecution"),
        ({"mode": "Required"}, "requiredDuringSchedulingIgnoredDuringExecution"),
    ],
)
def test_topology_places_the_pods_near_each_other_and_keeps_the_rules_of_the_template(
    mode: dict[str, str], kind: str
) -> None:
    theirs = {"podAffinity": {kind: ["theirs"]}, "podAntiAffinity": {"a": "b"}}
    made = built(job().pod_spec(affinity=theirs).wants(scheduling={"topology": {"key": "rack", **mode}}))

    affinity = made["spec"]["affinity"]
    assert affinity["podAntiAffinity"] == {"a": "b"}
    first, ours = affinity["podAffinity"][kind]
    assert first == "theirs"
    term = ours.get("podAffinityTerm", ours)
    assert term["topologyKey"] == "rack"
    assert term["labelSelector"]["matchLabels"].items() <= made["metadata"]["labels"].items()


def test_exclusive_topology_keeps_the_pods_of_all_other_jobs_out_of_the_domain() -> None:
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    wanted = {"key": "rack", "mode": "Required", "exclusive": True}
    theirs = {"podAntiAffinity": {kind: ["theirs"]}}
    made = built(job().pod_spec(affinity=theirs).wants(scheduling={"topology": wanted}))

    first, ours = made["spec"]["affinity"]["podAntiAffinity"][kind]
    assert first == "theirs"
    assert (ours["topologyKey"], ours["namespaceSelector"]) == ("rack", {})
    exists, other = ours["labelSelector"]["matchExpressions"]
    assert (exists["key"], exists["operator"]) == ("dtj.dev/job-uid", "Exists")
    assert (other["key"], other["operator"]) == ("dtj.dev/job-uid", "NotIn")
    assert other["values"] == [made["metadata"]["labels"]["dtj.dev/job-uid"]]
