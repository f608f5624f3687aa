"""Jobs of other systems: each field is carried over or listed."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj_client.convert import shell
from dtj_client.convert.jobs import Converted, convert, text_of
from dtj_client.errors import ClientError
from dtj_client.programs import accelerate, torchrun
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


def special(converted: Converted) -> list[str]:
    """The notes without that about root, which nearly all jobs have."""
    return [note for note in converted.notes if not note.startswith("no user was named")]


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
    assert special(found) == [
        "the job succeeds when all ranks do, not when the master does: see spec.successPolicy",
        "left out: env[MASTER_ADDR]: the operator sets it",
        "left out: ports[pytorchjob-port]: the operator sets it",
        "left out: --nnodes 3: the operator sets it",
        "left out: --rdzv-backend c10d: the operator sets it",
        "not carried over: spec.runPolicy.schedulingPolicy.minAvailable: 2",
    ]


def test_variables_that_the_crd_refuses_are_left_out() -> None:
    (crd,) = Path("crds").glob("*.yaml")
    (refused,) = re.findall(r"self in \[([^\]]*'MASTER_ADDR'[^\]]*)\]", crd.read_text())
    names = [*re.findall(r"'(\w+)'", refused), "PET_NNODES", "DTJ_A"]
    assert "NNODES" in names
    old = yaml.safe_load(PYTORCHJOB)
    (container,) = old["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["env"] = [{"name": name, "value": "1"} for name in (*names, "RANKS")]
    found = only(yaml.safe_dump(old))
    assert trainer(found.job)["env"] == [{"name": "RANKS", "value": "1"}]
    assert {f"left out: env[{name}]: the operator sets it" for name in names} <= set(found.notes)


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


def test_of_several_limits_of_restarts_the_others_are_listed() -> None:
    old = yaml.safe_load(PYTORCHJOB)
    old["spec"] |= {"elasticPolicy": {"maxRestarts": 7}}
    found = only(yaml.safe_dump(old))
    assert found.job["spec"]["recovery"] == {"maxRestarts": 7}
    assert "not carried over: spec.runPolicy.backoffLimit: 3" in found.notes
    for each in old["spec"]["pytorchReplicaSpecs"].values():
        each["restartPolicy"] = "Never"
    found = only(yaml.safe_dump(old))
    assert found.job["spec"]["recovery"] == {"maxRestarts": 0}
    assert "not carried over: spec.elasticPolicy.maxRestarts: 7" in found.notes


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
    command: [torchrun, train.py]
    resourcesPerNode: {limits: {nvidia.com/gpu: 4}}
""")
    assert (found.job["spec"]["replicas"], found.job["spec"]["processesPerReplica"]) == (2, "auto")
    assert trainer(found.job)["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    assert found.notes[0].startswith("runtime torch-distributed is not in the file: convert both together")
    assert found.notes[1].startswith("no image was named")
    assert found.notes[2:] == ["not carried over: spec.initializer.dataset.storageUri: hf://data"]


def test_trainjob_that_patches_its_runtime() -> None:
    found = only("""
kind: TrainJob
metadata: {name: tune}
spec:
  runtimePatches:
    - manager: example.io/platform
      trainingRuntimeSpec:
        template:
          metadata: {labels: {team: ml}}
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      metadata: {labels: {a: b}}
                      spec:
                        nodeSelector: {type: training}
                        containers: [{name: node, env: [{name: A, value: "1"}]}]
  trainer: {image: "my:1", command: [python, train.py], env: [{name: B, value: "2"}]}
""")
    template = found.job["spec"]["template"]
    assert template["metadata"] == {"labels": {"a": "b"}}
    assert template["spec"]["nodeSelector"] == {"type": "training"}
    assert trainer(found.job) == {
        "name": "trainer",
        "image": "my:1",
        "command": ["python", "train.py"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
    }
    patch = "spec.runtimePatches.example.io/platform.trainingRuntimeSpec"
    assert special(found) == [f"not carried over: {patch}.template.metadata.labels.team: ml"]


def test_job_and_runtime_as_kubectl_get_prints_them() -> None:
    runtime = {"kind": "TrainingRuntime", "metadata": {"name": "r"}, "spec": {"mlPolicy": {"numNodes": 5}}}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    old = {
        "kind": "TrainJob",
        "metadata": {"name": "a", "uid": "u", "annotations": annotations},
        "spec": {"runtimeRef": {"name": "r"}, "trainer": {"image": "t:1"}},
    }
    found = only(yaml.safe_dump({"kind": "List", "items": [old, runtime]}))
    assert (found.job["spec"]["replicas"], special(found)) == (5, [])
    assert "last-applied" not in str(found.job)


@pytest.mark.parametrize(
    ("tasks", "launcher", "expected"),
    [
        ("ntasks=4", "python", (2, 4)),
        ("ntasks-per-node=1", "torchrun --nproc-per-node 8", (8, 2)),
        ("ntasks=3", "python", (1, 2)),
        ("ntasks=3", "torchrun", (None, 2)),
    ],
)
def test_sbatch_script_with_gpus_of_each_task(
    tasks: str, launcher: str, expected: tuple[int | None, int]
) -> None:
    found = only(f"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --{tasks}
#SBATCH --gpus-per-task=2
srun {launcher} train.py
""")
    gpus = trainer(found.job)["resources"]["limits"]["nvidia.com/gpu"]
    assert (found.job["spec"].get("processesPerReplica"), gpus) == expected
    assert ("not carried over: #SBATCH --ntasks=3" in found.notes) is (tasks == "ntasks=3")


def test_trainjob_with_its_runtime() -> None:
    found = only("""
kind: ClusterTrainingRuntime
metadata: {name: eight}
spec:
  mlPolicy: {numNodes: 3, torch: {numProcPerNode: 8}}
  podGroupPolicy: {volcano: {}}
  template:
    spec:
      replicatedJobs:
        - name: data
          template: {spec: {template: {spec: {containers: [{name: data, image: "d:1"}]}}}}
        - name: node
          template:
            metadata: {labels: {step: trainer}}
            spec:
              template:
                spec:
                  nodeSelector: {gpu: h100}
                  containers:
                    - {name: node, image: "t:1", env: [{name: A, value: "1"}, {name: B, value: "1"}]}
---
kind: TrainJob
metadata: {name: tune}
spec:
  runtimeRef: {name: eight}
  trainer: {command: [python, train.py], env: [{name: B, value: "2"}]}
""")
    assert (found.job["spec"]["replicas"], found.job["spec"]["processesPerReplica"]) == (3, 8)
    assert found.job["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert trainer(found.job) == {
        "name": "trainer",
        "image": "t:1",
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "command": ["python", "train.py"],
    }
    left, jobs = "not carried over from the runtime: ", "template.spec.replicatedJobs"
    assert special(found) == [
        f"{left}podGroupPolicy.volcano: {{}}",
        f"{left}{jobs}[data].template.spec.template.spec.containers[data].image: d:1",
        f"{left}{jobs}[node].template.metadata.labels.step: trainer",
    ]


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
      containers: [{name: main, image: "a:1", command: [bash, -c, torchrun --nnodes 4 $FILE]}]
""")
    assert (found.job["spec"]["replicas"], found.job["spec"]["recovery"]) == (4, {"maxRestarts": 0})
    assert trainer(found.job)["name"] == "trainer"
    assert special(found) == [
        "left out: subdomain: old: the operator sets it",
        "check the shell text: the operator sets what --nnodes, --node-rank and --rdzv-* say",
        "not carried over: spec.podFailurePolicy.rules: ['x']",
    ]


def test_torchrun_alone_in_a_shell() -> None:
    found = only("""
kind: Job
metadata: {name: old}
spec:
  completions: 2
  template:
    spec:
      containers:
        - name: main
          image: a:1
          command: [/bin/bash, -c]
          args:
            - |
              torchrun --nnodes=2 --node_rank=$JOB_COMPLETION_INDEX --nproc_per_node=4 \\
                --master_addr=old-0.old --master_port=29500 train.py --name "my run"
""")
    assert trainer(found.job)["command"] == ["torchrun", "train.py", "--name", "my run"]
    assert "args" not in trainer(found.job)
    assert found.job["spec"]["processesPerReplica"] == 4
    assert "left out: --node-rank $JOB_COMPLETION_INDEX: the operator sets it" in found.notes


@pytest.mark.parametrize("text", ["cd /app && torchrun a.py", "torchrun 'a.py", "torchrun a.py $LR", "ls"])
def test_text_that_needs_a_shell_stays(text: str) -> None:
    assert torchrun.in_a_shell(["bash", "-c", text]) is None


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
    assert special(found) == [
        "not carried over: GPU type h100: use nodeSelector",
        "not carried over: #SBATCH --partition=big: use nodeSelector or tolerations",
        "not carried over: module load cuda",
        "not carried over: export ADDR=$(hostname)",
        "not carried over: srun --mpi=none",
        "not carried over: echo done",
        "left out: --nnodes 2: the operator sets it",
    ]


def test_sbatch_script_with_variables_arrays_and_blocks() -> None:
    found = only(
        r"""#!/bin/bash
#SBATCH --nodes=4 --cpus-per-task 6 # of 8
set -ex;
GPUS=8   # of each node
: "${SEED:=7}"
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK    # one for each core
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PORT="29500"
SCRIPT=${SCRIPT:=src/train.py}
declare -a LAUNCH=(
    --nproc_per_node=$GPUS   # ranks
    --rdzv_endpoint=$(hostname):$PORT
)
LAUNCH+=(--nnodes=$SLURM_JOB_NUM_NODES)
RESUME=""
if [ -d /opt/managed ]; then
    RESUME="--resume=1"
    export DEBUG=1

fi
for lr in 1 2; do python other.py; done
srun ${RESUME} -l --container-mounts /a:/a bash_is_not/here.sh 'x' || exit 1
srun ${RESUME} -l --container-image ./own.sqsh "${EMPTY[@]}" ./venv/bin/torchrun "${LAUNCH[@]}" $SCRIPT \
    --seed $SEED --text "it's $GPUS" '$GPUS' > log.txt 2>&1 &
wait
""".replace(
            "\\\n",
            "\
",
        )
    )
    assert trainer(found.job)["command"] == [
        *("./venv/bin/torchrun", "src/train.py", "--seed", "7", "--text", "it's 8", "$GPUS"),
    ]
    assert trainer(found.job)["env"] == [
        {"name": "OMP_NUM_THREADS", "value": "6"},
        {"name": "PORT", "value": "29500"},
    ]
    assert found.job["spec"]["processesPerReplica"] == 8
    assert [note for note in found.notes if "no image" not in note] == [
        'left out: export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1): '
        "the operator sets it",
        "not carried over: if [ -d /opt/managed ]; then",
        'not carried over: RESUME="--resume=1"',
        "not carried over: export DEBUG=1",
        "not carried over: fi",
        "not carried over: for lr in 1 2; do python other.py; done",
        "not carried over: srun ${RESUME} -l --container-mounts /a:/a bash_is_not/here.sh 'x' || exit 1",
        "not carried over: srun ${RESUME}",
        "not carried over: srun -l",
        "not carried over: srun --container-image ./own.sqsh",
        "not carried over: srun ${EMPTY[@]}",
        "not carried over: > log.txt",
        "not carried over: 2>&1",
        "not carried over: &",
        "not carried over: wait",
        "left out: --rdzv-endpoint $(hostname):29500: the operator sets it",
        "left out: --nnodes 4: the operator sets it",
        "the command has variables of the shell: write their values: $GPUS",
    ]


_STEPS = (
    "nvidia-smi | tee a",
    "./setup.sh",
    "uv sync",
    'eval "$(conda shell.bash hook)" && conda activate a',
)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("srun bash -c 'cd /app && torchrun a.py'", ["bash", "-c", "cd /app && torchrun a.py"]),
        (r'python -c "import a; print(\"b;\")"', ["python", "-c", 'import a; print("b;")']),
        ("cd /app && python train.py", ["python", "train.py"]),
        ("clear; srun python 'a;b.py' && echo done; date", ["python", "a;b.py"]),
        *((f"{step} && python train.py", ["python", "train.py"]) for step in _STEPS),
        ("if true; then python a.py; fi", None),
        ("python a.py || python b.py; date", None),
        ("python train.py 'a' | grep b", None),
    ],
)
def test_only_one_program_is_a_command(line: str, command: list[str] | None) -> None:
    assert trainer(only(f"#SBATCH -N 1\n{line}\n").job).get("command") == command


def test_script_whose_quote_has_no_end_is_read_line_by_line() -> None:
    found = only("#SBATCH -N 1\necho it's\npython train.py \\\n  --lr 1\n")
    assert trainer(found.job)["command"] == ["python", "train.py", "--lr", "1"]
    assert "not carried over: echo it's" in found.notes


@pytest.mark.parametrize(
    ("lines", "notes"),
    [
        ("cat > a.json <<'END'\n{it's:\n}}\nA=5\npython b.py; date\nEND", ["cat > a.json"]),
        ("function setup {\nA=5\n}", ["function setup {", "A=5", "}"]),
        ("train()\n{\nA=5\npython b.py\n}", ["train()", "{", "A=5", "python b.py", "}"]),
        ("}", ["}"]),
        ("[ -f a ] && export A=5", ["[ -f a ] && export A=5"]),
        ("[[ -f a ]] && cd b && python b.py; date", ["[[ -f a ]] && cd b && python b.py", "date"]),
        *(
            (f"{test} && A=5", [f"{test} && A=5"])
            for test in ("! a", "a | grep -q '|'", "$DEBUG", "/bin/test a")
        ),
    ],
)
def test_what_runs_perhaps_or_never_is_listed_only(lines: str, notes: list[str]) -> None:
    found = only(f"#SBATCH -N 1\n{lines}\nB=3 && python train.py $A $B && [ -f c ] && date\n")
    assert trainer(found.job)["command"] == ["python", "train.py", "$A", "3"]
    assert "env" not in trainer(found.job)
    said = [note.partition(" <<")[0] for note in found.notes if note.startswith("not carried over: ")]
    assert said == [f"not carried over: {each}" for each in (*notes, "[ -f c ] && date")]


def test_what_only_a_shell_replaces_is_named() -> None:
    line = r"""srun python ~/a.py data/*.tar '*' "\d+" $((2 * 2)) {1..3} $SLURM_PROCID"""
    found = only(f"#SBATCH -N 1\nexport DATA=~/data\n{line}\n")
    assert trainer(found.job)["command"][3:5] == ["*", r"\d+"]
    said = "no shell runs in the pod: write what these become:"
    assert f"{said} DATA=~/data" in found.notes
    assert f"{said} ~/a.py, data/*.tar, {{1..3}}" in found.notes
    assert any("$SLURM_PROCID (in the program read RANK)" in note for note in found.notes)


def test_container_of_srun_is_named() -> None:
    found = only("#SBATCH --ntasks-per-node=4\nsrun singularity exec --nv a.sif python a.py\n")
    assert any(note.startswith("singularity starts a container, which a pod is") for note in found.notes)


@pytest.mark.parametrize(
    ("options", "gpus"),
    [("--gpus=8", 4), ("-G h100:8", 4), ("--gpus=3", None), ("--gpus=8 --gres=gpu:4", 4), ("--gres=gpu", 1)],
)
def test_gpus_are_those_of_a_node(options: str, gpus: int | None) -> None:
    found = only(f"#SBATCH -N 2 {options} --time=0\naccelerate launch a.py\n")
    assert trainer(found.job)["command"][:2] == ["accelerate", "launch"]
    assert trainer(found.job).get("resources", {}).get("limits") == (gpus and {"nvidia.com/gpu": gpus})
    assert "activeDeadlineSeconds" not in found.job["spec"]
    assert ("not carried over: #SBATCH --gpus=3" in found.notes) is (gpus is None)


@pytest.mark.parametrize(
    ("options", "sizes", "listed"),
    [
        ("--gpus=16 --gpus-per-node=8", (2, None, 8), []),
        ("--gpus=h100:16 --gres=gpu:h100:8", (2, None, 8), []),
        ("--ntasks=16 --ntasks-per-node=8 --gres=gpu:8", (2, 8, 8), []),
        ("-n 16 --ntasks-per-node=8 --gpus=16", (2, 8, 8), []),
        ("--ntasks=12 --ntasks-per-node=8 --gres=gpu:8", (None, 8, 8), ["ntasks=12"]),
        ("-N 2 --gpus=8 --gpus-per-node=8", (2, None, 8), ["gpus=8"]),
        ("-N 2 -n 8 --ntasks-per-node=8", (2, 8, None), ["ntasks=8"]),
        ("--gpus=12 --gpus-per-node=8", (None, None, 8), ["gpus=12"]),
    ],
)
def test_number_of_nodes_follows_from_the_totals_and_a_contradiction_is_listed(
    options: str, sizes: tuple[int | None, ...], listed: list[str]
) -> None:
    found = only(f"#SBATCH {options}\nsrun torchrun train.py\n")
    spec, limits = found.job["spec"], trainer(found.job).get("resources", {}).get("limits", {})
    assert (spec.get("replicas"), spec.get("processesPerReplica"), limits.get("nvidia.com/gpu")) == sizes
    assert [note for note in found.notes if "#SBATCH" in note] == [
        f"not carried over: #SBATCH --{each}" for each in listed
    ]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("srun uv run torchrun --nnodes=2 --rdzv-id 7 a.py", "uv run torchrun a.py"),
        ("uv run torchrun --nnodes=2 a.py", "uv run torchrun a.py"),
        ("srun conda run -n a python -u a.py", "conda run -n a torchrun a.py"),
    ],
)
def test_launcher_behind_a_wrapper_is_found(line: str, command: str) -> None:
    found = only(f"#SBATCH -N 2 --ntasks-per-node=8 --gres=gpu:8\n{line}\n")
    assert trainer(found.job)["command"] == command.split()


def test_token_that_a_script_exports_is_named() -> None:
    found = only("#SBATCH -N 2\nexport HF_TOKEN=hf_1 WANDB_API_KEY=2\nexport LR=1\npython a.py\n")
    assert (
        "anyone who may read the job can read HF_TOKEN, WANDB_API_KEY: "
        "take it from a Secret with valueFrom.secretKeyRef"
    ) in found.notes
    assert not [note for note in only("#SBATCH -N 2\nexport LR=1\npython a.py\n").notes if "anyone" in note]


def test_number_of_nodes_that_slurm_would_refuse_is_left_to_the_cluster() -> None:
    (found,) = convert("#SBATCH -N 0 -n 4 --gpus=8\npython a.py\n")
    assert found.job["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a '$X' \"$X\" $X", ["a", "$X", "1 2", "1", "2"]),
        ("${X:-3} ${Y:-3} ${Y} $(f a) `g b`", ["1", "2", "3", "${Y}", "$(f a)", "`g b`"]),
        ('"${A[@]}" x${A[@]}y "" "${N[@]}" $N', ["p q", "r", "xp", "q", "ry", ""]),
        (r"a\ b \$X NAME=$X", ["a b", "$X", "NAME=1 2"]),
    ],
)
def test_words_of_the_shell(line: str, words: list[str]) -> None:
    assert shell.words(line, {"X": ["1 2"], "A": ["p q", "r"], "N": []}) == words


def test_sbatch_command_with_variables_before_and_in_it() -> None:
    found = only("#SBATCH -N 1\nOMP_NUM_THREADS=8 exec srun python train.py --data $DATA/x --seed ${SEED}\n")
    assert trainer(found.job)["env"] == [{"name": "OMP_NUM_THREADS", "value": "8"}]
    assert trainer(found.job)["command"] == ["python", "train.py", "--data", "$DATA/x", "--seed", "${SEED}"]
    assert found.notes[-1] == "the command has variables of the shell: write their values: $DATA, $SEED"


def test_sbatch_script_that_starts_one_process_for_each_task() -> None:
    found = only("#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=4\n#SBATCH -c2\nsrun -u python train.py\n")
    assert found.job["spec"]["processesPerReplica"] == 4
    assert trainer(found.job)["command"] == ["torchrun", "train.py"]
    assert "srun starts a process for each task: here torchrun does" in found.notes
    assert [note for note in found.notes if "lacks its code" in note]
    assert trainer(found.job)["resources"] == {"requests": {"cpu": "8"}}
    assert "not carried over: srun -u" in found.notes


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("srun python -u -m a.train -u 1", ["torchrun", "-m", "a.train", "-u", "1"]),
        ("srun python -W error a.py", ["torchrun", "--no-python", "python", "-W", "error", "a.py"]),
        ("srun sh -c 'python a.py | tee b'", ["torchrun", "--no-python", "sh", "-c", "python a.py | tee b"]),
        ("srun bash -c 'cd /a && torchrun a.py'", ["bash", "-c", "cd /a && torchrun a.py"]),
        ("python a.py", ["python", "a.py"]),
    ],
)
def test_program_of_srun_runs_once_for_each_task(line: str, command: list[str]) -> None:
    found = only(f"#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n{line}\n")
    assert trainer(found.job)["command"] == command


def test_accelerate_launch_has_its_option_for_cpus() -> None:
    found = only("#SBATCH --nodes=2\nsrun accelerate launch --num_processes 8 --num_machines 2 a.py\n")
    assert trainer(found.job)["command"] == ["accelerate", "launch", *PLACE, "--cpu", "a.py"]
    assert "processesPerReplica" not in found.job["spec"]
    assert any("one rank a pod: for more write torchrun" in note for note in found.notes)


@pytest.mark.parametrize(
    ("command", "processes", "note"),
    [
        ('[bash, -c, "run --machine_rank $RANK --num_machines ${WORLD_SIZE}"]', 1, "the command count pods"),
        ("[bash, train.sh]", None, "needs NODE_RANK and NNODES, or processesPerReplica: 1"),
        ("[/opt/conda/bin/python3.11, train.py]", 1, "starts one process in each pod"),
        ("[python, -m, torch.distributed.run, train.py]", None, ""),
        ("[/opt/train, --fast]", None, ""),
    ],
)
def test_rank_of_a_pytorchjob_counts_pods(command: str, processes: int | None, note: str) -> None:
    found = only(f"""
kind: PyTorchJob
metadata: {{name: a}}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec: {{containers: [{{name: pytorch, image: "a:1", command: {command},
                              resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}
""")
    assert found.job["spec"].get("processesPerReplica") == processes
    assert bool(special(found)) is bool(note)
    assert note in "".join(found.notes)


@pytest.mark.parametrize(("program", "processes"), [("python", 1), ("torchrun", None), ("sh", None)])
def test_program_that_no_launcher_starts_is_one_rank(program: str, processes: int | None) -> None:
    """Of a sbatch script and of a Job, too: else WORLD_SIZE counts GPUs, and RANK is not set."""
    job = f"""
kind: Job
metadata: {{name: a}}
spec:
  completions: 2
  template:
    spec: {{containers: [{{name: a, image: "a:1", command: [{program}, main.py],
                          resources: {{limits: {{nvidia.com/gpu: 4}}}}}}]}}
"""
    for text in (job, f"#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\nsrun {program} main.py\n"):
        found = only(text)
        assert found.job["spec"].get("processesPerReplica") == processes
        assert any("starts one process in each pod" in each for each in found.notes) is bool(processes)


def test_job_of_a_workflow_in_a_queue_loses_its_owner() -> None:
    """As kubectl prints it, suspended by Kueue: the deletion of the owner would delete the new job."""
    old = yaml.safe_load(PYTORCHJOB)
    old["metadata"] |= {
        "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
        "ownerReferences": [{"kind": "Workflow", "name": "w", "uid": "u"}],
        "finalizers": ["workflows/x"],
        "generateName": "mnist-",
    }
    found = only(yaml.safe_dump(old))
    assert found.job["metadata"].keys() == {"name", "namespace", "labels"}
    assert "suspend" not in found.job["spec"]
    assert "left out: suspend: true: Kueue keeps the job waiting until it admits it" in found.notes


def test_name_that_a_job_cannot_have_is_changed() -> None:
    found = only(PYTORCHJOB.replace("name: mnist,", "name: mnist.v2,"))
    assert found.job["metadata"]["name"] == "mnist-v2"
    assert "a job cannot have the name mnist.v2: it is mnist-v2 here" in found.notes


def test_image_whose_user_is_root_is_mentioned_unless_a_user_is_named() -> None:
    old = yaml.safe_load(PYTORCHJOB)
    pod = old["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    for where, security, is_said in (
        (pod, {}, True),
        (pod, {"runAsNonRoot": True}, True),
        (pod, {"runAsNonRoot": False}, False),
        (pod["containers"][0], {"runAsNonRoot": True}, True),
        (pod["containers"][0], {"runAsUser": 0}, False),
    ):
        where["securityContext"] = security
        found = only(yaml.safe_dump(old))
        notes = [note for note in found.notes if "pods do not run as root here" in note]
        assert bool(notes) is is_said
        assert all("HOME=/tmp" in note for note in notes), "a user that the image does not know has / as home"


def test_deepspeed_is_named() -> None:
    found = only(
        PYTORCHJOB.replace("torchrun, --nnodes=3, --rdzv_backend, c10d", "deepspeed, --num_gpus, '8'")
    )
    assert trainer(found.job)["command"][0] == "deepspeed"
    assert any("write torchrun instead: deepspeed.init_distributed()" in note for note in found.notes)


def test_index_of_an_indexed_job_is_that_of_the_replica() -> None:
    found = only("""
kind: Job
metadata: {name: a}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  template:
    spec:
      containers:
      - name: a
        image: a:1
        command: [python, a.py]
        env:
        - {name: A, value: "1"}
        - name: ME
          valueFrom: {fieldRef: {fieldPath: "metadata.annotations['x/job-completion-index']"}}
""")
    assert special(found) == []
    assert {each["name"]: each["value"] for each in trainer(found.job)["env"]} == {
        "A": "1",
        "ME": "$(NODE_RANK)",
        "JOB_COMPLETION_INDEX": "$(NODE_RANK)",
    }


def test_image_for_gpus_of_another_maker_is_left_to_write() -> None:
    found = only("""
kind: Job
metadata: {name: a}
spec:
  template: {spec: {containers: [{name: a, resources: {limits: {amd.com/gpu: 8}}}]}}
""")
    assert "image" not in trainer(found.job)
    said = "no image was named, and there is no trainer image for amd.com/gpu: write the image"
    assert said in found.notes


@pytest.mark.parametrize(("options", "noted"), [([], True), (["--use_env"], False), (["--use-env"], False)])
def test_launcher_before_torchrun_gave_the_local_rank_as_an_option(options: list[str], noted: bool) -> None:
    program = ["--log-dir", "a", "train.py", "--lr", "1"]
    launch = torchrun.clean(["python3", "-m", "torch.distributed.launch", *options, *program])
    assert launch is not None
    assert launch.words == ["torchrun", *program]
    assert any("read LOCAL_RANK instead" in note for note in launch.notes) is noted


def test_torchrun_options_that_stay() -> None:
    words = ["--max-restarts", "3", "-m", "pkg.train", "--nnodes=2"]
    launch = torchrun.clean(["python", "-m", "torch.distributed.run", *words])
    assert launch is not None
    assert launch.words == ["torchrun", *words], "what follows the program is its own"
    assert torchrun.clean(["python", "train.py"]) is None


def test_output_is_yaml_with_the_notes_as_comments() -> None:
    old = yaml.safe_load(PYTORCHJOB)
    (container,) = old["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container |= {"command": ["python", "-c", "import a\nprint(1)\n"]}
    old["spec"]["script"] = "two\nlines"
    text = "\n".join(text_of(convert(yaml.safe_dump(old) + "---\nkind: ConfigMap\n")))
    assert "# not converted, apply them as they are: ConfigMap" in text
    assert "# not carried over: spec.script: two\n# lines\n" in text
    assert "- |\n          import a\n          print(1)\n" in text, "as people write it"
    assert yaml.safe_load(text)["kind"] == "DistributedTrainingJob"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Pod", "found: Pod"),
        (
            "{apiVersion: kubeflow.org/v2beta1, kind: MPIJob}",
            "found: MPIJob.*torchrun .* takes the place of mpirun",
        ),
        ("{apiVersion: batch.volcano.sh/v1alpha1, kind: Job}", "found: Job of batch.volcano.sh"),
        ("", "nothing"),
        ("num_processes: 8", "found: nothing"),  # a configuration of Accelerate
        ("a: [", "neither"),
        ("kind: DistributedTrainingJob", "already\n  fix: kubectl dtj submit -f"),
    ],
)
def test_no_job(text: str, said: str) -> None:
    with pytest.raises(ClientError, match=f"(?s){said}"):
        convert(text)


CONTAINERS = "{spec: {containers: [{name: pytorch, image: a}]}}"
WORKERS = f"{{pytorchReplicaSpecs: {{Worker: {{replicas: 2, template: {CONTAINERS}}}}}}}"


@pytest.mark.parametrize(
    ("old", "new", "replicas"),
    [
        ("replicas: 2", "replicas: null", 1),
        (CONTAINERS, "null", 2),
        (CONTAINERS, "{spec: {containers: []}}", 2),
    ],
)
def test_field_that_is_null_is_not_there(old: str, new: str, replicas: int) -> None:
    found = only(f"kind: PyTorchJob\nmetadata:\nspec: {WORKERS.replace(old, new)}")
    assert found.job["metadata"] == {"name": "converted"}
    assert found.job["spec"]["replicas"] == replicas


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("PyTorchJob", WORKERS.replace("2", "two"), "'two'"),
        ("PyTorchJob", "{pytorchReplicaSpecs: {Worker: null}}", "has neither a Master nor a Worker"),
        ("Job", "{template: {spec: {containers: [a]}}}", "'str'"),
        ("Job", "5", "'int'"),
        ("TrainJob", "{trainer: {numNodes: two}, runtimeRef: {name: r}}", "'two'"),
    ],
)
def test_object_that_no_cluster_would_take_is_named(kind: str, spec: str, said: str) -> None:
    with pytest.raises(
        ClientError, match=f"(the )?{kind} (a has a field that .* of a wrong type: .*)?{said}"
    ):
        convert(f"kind: {kind}\nmetadata: {{name: a}}\nspec: {spec}\n---\nkind: TrainingRuntime")


@pytest.mark.parametrize(
    ("options", "name"), [("--job-name=7b_sft", "job-7b-sft"), ("-J bob's --comment x", "bob-s")]
)
def test_name_of_a_job_in_slurm_becomes_one_in_kubernetes(options: str, name: str) -> None:
    assert only(f"#SBATCH {options}\npython a.py\n").job["metadata"]["name"] == name


PLACE = [f"--{name}={value}" for name, value in accelerate.PLACE.items()]
NODES = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\n"


@pytest.mark.parametrize(
    ("lines", "processes", "command"),
    [
        (  # as in the documentation of transformers
            "export GPUS_PER_NODE=8\nsrun --jobid $SLURM_JOBID bash -c 'python -m torch.distributed.run \\\n "
            "--nproc_per_node $GPUS_PER_NODE --nnodes $SLURM_NNODES --node_rank $SLURM_PROCID \\\n"
            'train.py --run "a b"\'\n',
            8,
            ["torchrun", "train.py", "--run", "a b"],
        ),
        ("srun torchrun --nproc_per_node $GPUS train.py\n", "auto", ["torchrun", "train.py"]),
        ("srun torchrun train.py\n", 1, ["torchrun", "train.py"]),
        (
            "srun accelerate launch --machine_rank $SLURM_PROCID a.py\n",
            None,
            ["accelerate", "launch", *PLACE, "a.py"],
        ),
        (  # as in the examples of Accelerate
            'export LAUNCHER="accelerate launch --num_processes $((SLURM_NNODES * 8)) --num_machines '
            '$SLURM_NNODES --rdzv_backend c10d --main_process_ip $head_node_ip --main_process_port 29500"\n'
            "export ARGS='--lr 1'\nsrun $LAUNCHER a.py $ARGS $@\n",
            None,
            ["accelerate", "launch", *PLACE, "--rdzv_backend", "c10d", "a.py", "--lr", "1"],
        ),
        (
            "srun accelerate launch --num_processes 16 --num_machines 2 a.py\n",
            8,
            ["accelerate", "launch", *PLACE, "a.py"],
        ),
        (
            "srun bash -c 'accelerate launch --config_file c.yaml --machine_rank $SLURM_PROCID a.py'\n",
            None,
            ["accelerate", "launch", *PLACE, "--config_file", "c.yaml", "a.py"],
        ),
    ],
)
def test_launcher_of_each_node_says_how_many_ranks_it_starts(
    lines: str, processes: int | str | None, command: list[str]
) -> None:
    found = only(NODES + lines)
    assert found.job["spec"].get("processesPerReplica") == processes
    assert trainer(found.job)["command"] == command
    assert not any("write torchrun" in note for note in found.notes)
    assert not any("write their values" in note for note in found.notes)
