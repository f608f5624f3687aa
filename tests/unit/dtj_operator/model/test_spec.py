"""The custom resource as a Job: defaults, derived sizes, and an error for invalid fields."""

import pytest

from dtj_operator.model import quantity, spec
from dtj_operator.model.spec import Checkpoint, ExitCodes, PodCondition, Recovery, ResumeFrom, Rule
from tests.support.builders import JobBuilder, job, template

param = pytest.param


def test_absent_fields_have_the_defaults_of_the_schema() -> None:
    made = job().job()

    assert made.error is None
    assert (made.replicas, made.min_replicas, made.max_replicas, made.processes) == (1, 1, 1, 1)
    assert (made.master_port, made.elastic) == (29500, None)
    assert (made.suspend, made.deadline_s, made.ttl_s) == (False, None, None)
    assert (made.clean_pods, made.success, made.checkpoint) == ("Running", None, None)
    assert (made.network.policy, made.scheduling.gang) == ("Isolated", "Auto")
    assert made.recovery == Recovery(
        scope="Auto",
        max_restarts=10,
        window_s=86_400,
        max_restarts_without_progress=3,
        backoff_s=1,
        node_lost_s=40,
        avoid_node_after_faults=2,
        rules=(),
    )


@pytest.mark.parametrize(
    ("resources", "processes"),
    [
        param({}, 1, id="no accelerator: one process"),
        param({"limits": {"nvidia.com/gpu": 4}}, 4, id="four GPUs: four processes"),
        param(
            {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}},
            2,
            id="not counted twice",
        ),
        param({"requests": {"google.com/tpu": 8}}, 8, id="accelerators that are only requested count"),
        param(
            {"limits": {"cpu": 8, "memory": "1Gi", "vendor.example/nic": 2}},
            1,
            id="other resources do not count",
        ),
    ],
)
def test_auto_means_the_accelerators_of_the_training_container(resources, processes) -> None:
    assert job().container(resources=resources).job().processes == processes


def test_container_named_trainer_runs_the_ranks_in_any_position() -> None:
    logs = {"name": "logs", "restartPolicy": "Always"}  # only the container with the ranks may not have this
    made = job().pod_spec(containers=[logs, {"name": "trainer"}])
    other = job().pod_spec(containers=[{"name": "main"}, {"name": "logs"}])

    assert (made.job().trainer, made.job().error) == ("trainer", None)
    assert other.job().trainer == "main"


def test_rules_and_checkpoint_are_parsed_completely() -> None:
    rules = [
        {
            "name": "codes",
            "action": "FailJob",
            "onExitCodes": {"containerName": "logs", "operator": "NotIn", "values": [1, 2]},
        },
        {
            "action": "Restart",
            "onPodConditions": [{"type": "Odd"}, {"type": "DisruptionTarget", "status": "False"}],
        },
    ]
    volume = {"persistentVolumeClaim": {"claimName": "runs"}}
    checkpoint = {"mountPath": "/ckpt", "volume": volume, "resumeFrom": {"job": "monday"}}
    made = job().recovery(rules=rules, maxRestarts=2).wants(checkpoint=checkpoint).job()

    assert made.recovery.rules == (
        Rule(
            name="codes",
            action="FailJob",
            on_exit_codes=ExitCodes(container_name="logs", operator="NotIn", values=frozenset({1, 2})),
        ),
        Rule(
            action="Restart",
            on_pod_conditions=(
                PodCondition(type="Odd"),
                PodCondition(type="DisruptionTarget", status="False"),
            ),
        ),
    )
    assert made.recovery.max_restarts == 2
    assert made.checkpoint == Checkpoint(
        mount_path="/ckpt", volume=volume, resume_from=ResumeFrom(job="monday")
    )


PVC = {"persistentVolumeClaim": {"claimName": "runs"}}


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        param(job().wants(replicas=0), "spec.replicas", id="zero replicas"),
        param(job().wants(replicas=True), "spec.replicas", id="a boolean is not a number"),
        param(job().wants(replicas="2"), "spec.replicas", id="a string is not a number"),
        param(
            job().wants(processesPerReplica="many"),
            "spec.processesPerReplica",
            id="neither a number nor auto",
        ),
        param(job().wants(elastic={"minReplicas": 1}), "spec.elastic.maxReplicas", id="no upper limit"),
        param(job().wants(elastic={"maxReplicas": 1}), "spec.elastic.minReplicas", id="no lower limit"),
        param(job().recovery(scope="Pod"), "spec.recovery.scope", id="an unknown scope"),
        param(job().wants(hang={"action": "Ignore"}), "spec.hang.action", id="an unknown hang action"),
        param(
            job().wants(hang={"timeoutSeconds": 0}), "spec.hang.timeoutSeconds", id="a hang timeout of 0 s"
        ),
        param(
            job().wants(hang={"workingSeconds": 0}), "spec.hang.workingSeconds", id="0 s for a rank at work"
        ),
        param(
            job().recovery(nodeLostSeconds=0),
            "spec.recovery.nodeLostSeconds",
            id="nodes that are lost after 0 s",
        ),
        param(job().recovery(nodeLostSeconds=True), "spec.recovery.nodeLostSeconds", id="true is not 1"),
        param(
            job().recovery(avoidNodeAfterFaults="never"),
            "spec.recovery.avoidNodeAfterFaults",
            id="a word that is not Never",
        ),
        param(job().wants(masterPort=70000), "spec.masterPort", id="an invalid port"),
        param(job().wants(template={}), "spec.template.spec.containers", id="an empty template"),
        param(JobBuilder(spec={}), "spec.template.spec.containers", id="no template"),
        param(job().pod_spec(containers=[]), "spec.template.spec.containers", id="no container"),
        param(
            job().pod_spec(containers=[{"image": "x"}]), "spec.template.spec.containers[0].name", id="no name"
        ),
        param(
            job().container(restartPolicy="Always"),
            "spec.template.spec.containers[0].restartPolicy",
            id="restartPolicy Always of the container with the ranks",
        ),
        param(
            job().container(restartPolicyRules=[{"action": "Restart"}]),
            "spec.template.spec.containers[0].restartPolicy",
            id="the kubelet restarts ranks by their exit code",
        ),
        param(job().wants(cleanPodPolicy="Some"), "spec.cleanPodPolicy", id="an unknown cleanPodPolicy"),
        param(
            job().wants(successPolicy={}),
            "spec.successPolicy.replicas",
            id="a success policy without replicas",
        ),
        param(
            job().wants(activeDeadlineSeconds=0), "spec.activeDeadlineSeconds", id="a deadline of 0 seconds"
        ),
        param(job().recovery(maxRestarts=-1), "spec.recovery.maxRestarts", id="a negative budget"),
        param(job().recovery(windowSeconds=0), "spec.recovery.windowSeconds", id="a window of 0 s"),
        param(
            job().recovery(rules=[{"onExitCodes": {"operator": "In", "values": [1]}}]),
            "spec.recovery.rules[0].action",
            id="a rule without an action",
        ),
        param(job().wants(checkpoint={"mountPath": "/c"}), "spec.checkpoint.volume", id="no volume"),
        param(
            job()
            .container(volumeMounts=[{"name": "v", "mountPath": "/c"}])
            .wants(checkpoint={"mountPath": "/c", "volume": PVC}),
            "spec.checkpoint.mountPath",
            id="a mount path that is taken",
        ),
        param(
            job()
            .container(volumeMounts=[{"name": "v", "mountPath": "/c/"}])
            .wants(checkpoint={"mountPath": "/c", "volume": PVC}),
            "spec.checkpoint.mountPath",
            id="a mount path that is taken, with a trailing slash",
        ),
        param(job().wants(network="None"), "spec.network", id="a string instead of an object"),
        param(
            job().container(securityContext="x"),
            "spec.template.spec.containers[0].securityContext",
            id="a part of a container that the operator extends",
        ),
        param(
            job().pod_spec(affinity={"nodeAffinity": []}),
            "spec.template.spec.affinity.nodeAffinity",
            id="a part of the pod that the operator extends",
        ),
        param(
            job().pod_spec(affinity={"podAntiAffinity": "x"}),
            "spec.template.spec.affinity.podAntiAffinity",
            id="a part that an exclusive domain extends",
        ),
        param(
            job().pod_spec(tolerations=5),
            "spec.template.spec.tolerations",
            id="a part that the admission by a queue extends",
        ),
        param(
            job().pod_spec(schedulingGates=True),
            "spec.template.spec.schedulingGates",
            id="a part that a queue with a topology extends",
        ),
        param(
            job().replicas(2).container(resources={"limits": {"nvidia.com/gpu": 3_000_000_000}}),
            "spec.processesPerReplica",
            id="more accelerators than the world size of a status can count",
        ),
    ],
)
def test_an_invalid_field_is_reported_with_its_value_and_the_fix(bad, field) -> None:
    error = bad.job().error

    assert error is not None
    assert error.field == field
    assert str(error).startswith((f"{field}: invalid value ", f"{field}: required value: "))


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (job().wants(replicas=0), "must be an integer >= 1"),
        (job().wants(hang={"timeoutSeconds": "1"}), "must be an integer"),
        (job().wants(suspend="yes"), "must be true or false"),
        (job().recovery(rules={}), "must be a list"),
        (job().recovery(scope="Pod"), "must be one of Auto, Replica, Job"),
        (job().recovery(nodeLostSeconds=0), "must be an integer >= 1, or Never"),
        (job().wants(processesPerReplica="all"), "must be an integer between 1 and 1024, or auto"),
        (job().container(env="A=B"), "must be a list"),
    ],
)
def test_error_says_what_is_expected(bad, expected) -> None:
    assert str(bad.job().error).endswith(f": {expected}")


@pytest.mark.parametrize(
    "good",
    [
        param(job().replicas(2).elastic(2, 2), id="a range of one size"),
        param(job().recovery(nodeLostSeconds="Never"), id="the word Never"),
    ],
)
def test_value_at_the_edge_is_valid(good) -> None:
    assert good.job().error is None


def test_parts_of_the_template_may_be_null_as_in_any_pod() -> None:
    empty = {"resources": None, "securityContext": {"capabilities": None}, "env": None, "volumeMounts": None}

    made = job().container(**empty).pod_spec(volumes=None, affinity=None, terminationGracePeriodSeconds=None)
    assert made.job().error is None
    assert made.job().grace_s == 30


def test_a_long_value_is_cut_because_the_api_server_refuses_a_long_status() -> None:
    assert len(str(job().wants(masterPort="x" * 40_000).job().error)) < 400


def test_invalid_spec_keeps_the_identity_so_that_the_status_can_be_written() -> None:
    made = job().wants(replicas=-3).job()

    assert (made.namespace, made.name, made.trainer) == ("team-a", "digits", "trainer")


@pytest.mark.parametrize(
    ("manager", "ours"),
    [
        param(None, True, id="no managedBy"),
        param("dtj.dev/operator", True, id="this operator"),
        param("kueue.x-k8s.io/multikueue", False, id="another controller"),
    ],
)
def test_a_job_that_another_controller_manages_is_not_ours(manager, ours) -> None:
    assert spec.managed_by_us(job().wants(managedBy=manager, template=template()).raw()) is ours


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500m", 0.5),
        ("500000u", 0.5),
        ("500000000n", 0.5),
        ("2", 2),
        (3, 3),
        ("2Gi", 2 * 1024**3),
        ("1e3", 1000),
        ("1.5k", 1500),
        ("much", None),
        (True, None),
        ("1e999999999", None),  # would take minutes to compute, and the operator has one thread
        ("9" * 5000, None),
    ],
)
def test_quantities(text, number) -> None:
    assert quantity.parse(text) == number
