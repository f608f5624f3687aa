"""Jobs of other systems: each field is carried over or listed."""

from typing import Any

import pytest
import yaml

from dtj_client.convert import Converted, as_yaml, convert
from dtj_client.errors import ClientError
from dtj_client.torchrun import clean
from dtj_operator.model.spec import parse

Json = dict[str, Any]

PYTORCHJOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: mnist, namespace: team, uid: u, labels: {a: b}}
spec:
  nprocPerNode: "4"
  runPolicy: {backoffLimit: 3, cleanPodPolicy: None, schedulingPolicy: {minAvailable: 2}, suspend: true}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template: &pod
        spec:
          containers:
          - name: pytorch
            image: mnist:1
            command: [torchrun, --nnodes=3, --rdzv_backend, c10d, train.py, --lr, "1"]
            ports: [{name: pytorchjob-port, containerPort: 23456}]
            env: [{name: MASTER_ADDR, value: x}, {name: A, value: "1"}]
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template: *pod
"""


def only(text: str) -> Converted:
    """The one job of a text; the operator accepts it."""
    (converted,) = convert(text)
    meta = {"namespace": "n", "uid": "u", **converted.job["metadata"]}
    assert parse({**converted.job, "metadata": meta}).error is None
    return converted


def trainer(job: Json) -> Json:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_pytorchjob() -> None:
    found = only(PYTORCHJOB)
    job = found.job
    assert job["metadata"] == {"name": "mnist", "namespace": "team", "labels": {"a": "b"}}
    assert {key: value for key, value in job["spec"].items() if key != "template"} == {
        "replicas": 3,
        "processesPerReplica": 4,
        "cleanPodPolicy": "None",
        "suspend": True,
        "recovery": {"maxRestarts": 3},
    }
    assert trainer(job) == {
        "name": "trainer",
        "image": "mnist:1",
        "command": ["torchrun", "train.py", "--lr", "1"],
        "env": [{"name": "A", "value": "1"}],
    }
    assert found.notes == [
        "the job succeeds when all ranks do, not when the master does: see spec.successPolicy",
        "left out: env[MASTER_ADDR]: the operator sets it",
        "left out: ports[pytorchjob-port]: the operator sets it",
        "left out: --nnodes 3: the operator sets it",
        "left out: --rdzv-backend c10d: the operator sets it",
        "not carried over: spec.runPolicy.schedulingPolicy.minAvailable: 2",
    ]


def test_pytorchjob_with_another_template_for_the_master_and_elastic_workers() -> None:
    old = yaml.safe_load(PYTORCHJOB)
    specs = old["spec"]["pytorchReplicaSpecs"]
    specs["Master"]["template"] = {"spec": {"containers": [{"name": "pytorch", "image": "other:1"}]}}
    old["spec"] |= {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4, "rdzvBackend": "c10d"}}
    found = only(yaml.safe_dump(old))
    assert trainer(found.job)["image"] == "mnist:1"
    assert found.job["spec"]["elastic"] == {"minReplicas": 2, "maxReplicas": 5}
    left = [note for note in found.notes if note.startswith("not carried over")]
    assert (
        "not carried over: spec.pytorchReplicaSpecs.Master.template.spec.containers[pytorch].image: other:1"
        in left
    )
    assert "not carried over: spec.elasticPolicy.rdzvBackend: c10d" in left


@pytest.mark.parametrize("kind", ["Master", "Worker"])
def test_pytorchjob_with_one_kind_of_replica(kind: str) -> None:
    old = yaml.safe_load(PYTORCHJOB)
    specs = old["spec"]["pytorchReplicaSpecs"]
    old["spec"]["pytorchReplicaSpecs"] = {kind: specs[kind] | {"restartPolicy": "Never"}}
    found = only(yaml.safe_dump(old))
    assert found.job["spec"]["replicas"] == specs[kind]["replicas"]
    assert trainer(found.job)["image"] == "mnist:1"


def test_trainjob() -> None:
    found = only("""
kind: TrainJob
metadata: {name: tune}
spec:
  runtimeRef: {name: torch-distributed}
  initializer: {dataset: {storageUri: "hf://data"}}
  trainer:
    numNodes: 2
    numProcPerNode: auto
    command: [python, train.py]
    resourcesPerNode: {limits: {nvidia.com/gpu: 4}}
""")
    assert (found.job["spec"]["replicas"], found.job["spec"]["processesPerReplica"]) == (2, "auto")
    assert trainer(found.job)["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    assert found.notes[0].startswith("runtime torch-distributed: copy what it adds")
    assert found.notes[1].startswith("no image was named")
    assert found.notes[2:] == ["not carried over: spec.initializer.dataset.storageUri: hf://data"]


def test_job_with_torchrun_in_a_shell() -> None:
    found = only("""
kind: Job
metadata: {name: old}
spec:
  completions: 4
  parallelism: 4
  completionMode: Indexed
  backoffLimit: 0
  podFailurePolicy: {rules: [x]}
  template:
    spec:
      restartPolicy: Never
      subdomain: old
      containers: [{name: main, image: "a:1", command: [bash, -c, torchrun --nnodes 4 train.py]}]
""")
    assert (found.job["spec"]["replicas"], found.job["spec"]["recovery"]) == (4, {"maxRestarts": 0})
    assert trainer(found.job)["name"] == "trainer"
    assert found.notes == [
        "left out: subdomain: old: the operator sets it",
        "check the shell text: the operator sets what --nnodes, --node-rank and --rdzv-* say",
        "not carried over: spec.podFailurePolicy.rules: ['x']",
    ]


def test_sbatch_script() -> None:
    found = only(r"""#!/bin/bash
#SBATCH --job-name=My_Run
#SBATCH -N 2
#SBATCH --gres=gpu:h100:4
#SBATCH --cpus-per-task=8 --mem=64G
#SBATCH -t 1-02:00:00
#SBATCH --partition=big
set -euo pipefail
module load cuda
export NCCL_DEBUG=INFO
export ADDR=$(hostname)

srun --container-image=reg#me/train:1 --mpi=none torchrun --nnodes=$SLURM_NNODES \
    --nproc-per-node=4 train.py --lr 1
echo done
""")
    spec = found.job["spec"]
    assert found.job["metadata"]["name"] == "my-run"
    assert (spec["replicas"], spec["processesPerReplica"], spec["activeDeadlineSeconds"]) == (2, 4, 93600)
    assert trainer(found.job) == {
        "name": "trainer",
        "image": "reg/me/train:1",
        "command": ["torchrun", "train.py", "--lr", "1"],
        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "resources": {
            "requests": {"cpu": "8", "memory": "64Gi"},
            "limits": {"nvidia.com/gpu": 4, "memory": "64Gi"},
        },
    }
    assert found.notes == [
        "not carried over: GPU type h100: use nodeSelector",
        "not carried over: #SBATCH --partition=big: use nodeSelector or tolerations",
        "not carried over: module load cuda",
        "not carried over: export ADDR=$(hostname)",
        "not carried over: srun --mpi=none",
        "the command has variables of the shell: write their values",
        "not carried over: echo done",
        "left out: --nnodes $SLURM_NNODES: the operator sets it",
    ]


def test_sbatch_script_that_starts_one_process_for_each_task() -> None:
    found = only("#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=4\n#SBATCH -c2\nsrun -u python train.py\n")
    assert found.job["spec"]["processesPerReplica"] == 4
    assert trainer(found.job)["command"] == ["python", "train.py"]
    assert trainer(found.job)["resources"] == {"requests": {"cpu": "8"}}
    assert "not carried over: srun -u" in found.notes


def test_torchrun_options_that_stay() -> None:
    words = ["--max-restarts", "3", "-m", "pkg.train", "--nnodes=2"]
    launch = clean(["python", "-m", "torch.distributed.run", *words])
    assert launch is not None
    assert launch.words == ["torchrun", *words], "what follows the program is its own"
    assert clean(["python", "train.py"]) is None


def test_output_is_yaml_with_the_notes_as_comments() -> None:
    text = "\n".join(as_yaml(convert(PYTORCHJOB + "---\nkind: ConfigMap\n")))
    assert "# not converted, apply them as they are: ConfigMap" in text
    assert yaml.safe_load(text)["kind"] == "DistributedTrainingJob"


@pytest.mark.parametrize(
    ("text", "said"), [("kind: Pod", "found: Pod"), ("", "nothing"), ("a: [", "neither")]
)
def test_no_job(text: str, said: str) -> None:
    with pytest.raises(ClientError, match=said):
        convert(text)
