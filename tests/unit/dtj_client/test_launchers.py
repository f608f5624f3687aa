"""Launchers of others as the program of a job with several pods."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from dtj_client.errors import ClientError
from dtj_client.programs import accelerate
from dtj_client.programs.launchers import count_processes, script_of
from dtj_client.submission.manifest import Request, job

WRAPPERS = [[], ["uv", "run", "--extra", "gpu"], ["conda", "run", "-n", "a"], ["env", "A=1", "nice"]]
PLACE = [
    *("--num_machines=$(NNODES)", "--num_processes=$(WORLD_SIZE)", "--machine_rank=$(NODE_RANK)"),
    *("--main_process_ip=$(MASTER_ADDR)", "--main_process_port=$(MASTER_PORT)"),
]


def command(*words: str, replicas: int | None = 2, gpus: int | None = 8) -> list[str]:
    """The command of a submitted job."""
    made = job(Request(name="a", command=words, replicas=replicas, gpus=gpus), with_code=False)
    found: list[str] = made["spec"]["template"]["spec"]["containers"][0]["command"]
    return found


@pytest.mark.parametrize(
    ("launcher", "options"),
    [
        (["accelerate", "launch"], []),
        (["/opt/bin/accelerate", "launch"], ["--mixed_precision", "bf16", "--multi_gpu"]),
        (["accelerate-launch"], ["--config_file=fsdp.yaml", "-m"]),
        (["python", "-m", "accelerate.commands.launch"], ["--use-fsdp", "--fsdp_version", "2"]),
        (["accelerate", "launch"], ["--newer_switch", "--cpu"]),
    ],
)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_accelerate_launch_gets_the_place_of_each_pod(
    launcher: list[str], options: list[str], wrapper: list[str]
) -> None:
    launcher = [*wrapper, *launcher]
    program = ["train.py", "--machine_rank", "$(HOME)"]
    assert command(*launcher, *options, *program) == [
        *(*launcher, *PLACE, *options),
        *("train.py", "--machine_rank", "$$(HOME)"),
    ]
    assert command(*launcher, *options, "train.py", replicas=None) == [*launcher, *options, "train.py"]


def test_accelerate_launch_has_its_option_for_pods_with_cpus_only() -> None:
    """Else it trains in each pod for itself."""
    for options in ([], ["--cpu"]):
        found = command("accelerate", "launch", *options, "train.py", gpus=None)
        assert found == ["accelerate", "launch", *PLACE, "--cpu", "train.py"]


def test_options_of_accelerate_without_a_value_are_known() -> None:
    found = find_spec("accelerate")
    assert found is not None
    assert found.origin is not None
    calls = ast.walk(ast.parse((Path(found.origin).parent / "commands" / "launch.py").read_text()))
    switches = {
        argument.value.lstrip("-").replace("_", "-")
        for call in calls
        if isinstance(call, ast.Call) and any("'store_" in ast.unparse(k) for k in call.keywords)
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }
    assert {"m", "use-fsdp"} <= switches
    assert switches <= set(accelerate._SWITCHES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["torchrun", "--standalone", "--nproc-per-node=8", "train.py", "--lr", "1"],
            "--standalone would be the same in all 2 pods, which would not train together\n"
            "  fix: leave out what the job says: -- torchrun --nproc-per-node=8 train.py --lr 1",
        ),
        (
            ["dtj", "run", "--compile", "--nnodes", "2", "--node-rank", "0", "train.py", "--lr", "1"],
            "--node-rank 0 would be the same in all 2 pods, which would not train together\n"
            "  fix: leave out what the job says: -- dtj run --compile train.py --lr 1",
        ),
        (["torchrun", "--nnodes=1", "train.py"], "--nnodes 1 would be"),
        (["torchrun", "--nnodes", "4", "train.py"], "--nnodes 4 would be"),
        (["python", "-m", "torch.distributed.run", "--node_rank=0", "a.py"], "--node-rank 0 would be"),
        (
            ["/usr/bin/python3.12", "-u", "-B", "-m", "torch.distributed.run", "--standalone", "a.py"],
            "--standalone would be the same",
        ),
        (["torchrun", "--rdzv-endpoint=localhost:29400", "a.py"], "--rdzv-endpoint localhost:29400 would"),
        (["torchrun", "--master_addr", "127.0.0.1", "a.py"], "--master-addr 127.0.0.1 would be"),
        (
            ["accelerate", "launch", "--num_processes", "8", "--machine_rank=0", "a.py"],
            "--num_processes 8, --machine_rank 0: this would be the same in all 2 pods\n  fix: leave it out",
        ),
        (["deepspeed", "--num_gpus=8", "a.py"], "deepspeed starts ranks on other machines by ssh"),
        (["srun", "python", "a.py"], "srun starts ranks on machines that Slurm or ssh gives it"),
        (
            ["/usr/bin/mpirun", "-np", "4", "a.py"],
            "mpirun starts ranks on machines that Slurm or ssh gives it",
        ),
    ],
)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_command_for_one_machine_is_refused_in_several_pods(
    words: list[str], said: str, wrapper: list[str]
) -> None:
    words, said = [*wrapper, *words], said.replace("-- ", " ".join(["--", *wrapper, ""]))
    with pytest.raises(ClientError) as raised:
        command(*words)
    assert said in str(raised.value)
    assert command(*words, replicas=1) == words


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "train.py", "--standalone"],
        ["torchrun", "--nproc-per-node=8", "--nnodes=2", "--rdzv-backend=c10d", "a.py"],
        ["dtj", "run", "--nproc=8", "--nnodes=2", "train.py"],
        ["dtj", "run", "train.py", "--node-rank", "0"],
        ["torchrun", "--nnodes=1:4", "--master-port=29501", "a.py"],
        ["bash", "-c", "accelerate launch --machine_rank $NODE_RANK a.py"],
        ["python", "deepspeed.py"],
    ],
)
def test_command_that_fits_several_pods_stays_as_it_is(words: list[str]) -> None:
    assert command(*words) == words


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(
    ("program", "processes"),
    [
        ("python train.py", 1),
        ("python -m torch.distributed.run a.py", None),
        ("torchrun a.py", None),
        ("dtj run --nproc 4 a.py", 4),
    ],
)
def test_processes_of_a_program_behind_a_wrapper(
    wrapper: list[str], program: str, processes: int | None
) -> None:
    spec = job(Request(name="a", command=[*wrapper, *program.split()], gpus=8), with_code=False)["spec"]
    note = count_processes(spec)
    assert spec.get("processesPerReplica") == processes
    assert note.startswith("processesPerReplica: 1: python starts one") is (processes == 1)


def test_script_that_a_wrapper_runs_is_one_process() -> None:
    spec = job(Request(name="a", command=["uv", "run", "train.py"], gpus=8), with_code=False)["spec"]
    assert count_processes(spec).startswith("processesPerReplica: 1: train.py starts one process in each pod")


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("train.py --lr 1", "train.py"),
        ("nvidia-smi -L", "nvidia-smi"),
        ("env A=1 python -u train.py", "train.py"),
        ("bash run.sh", "run.sh"),
        ("dtj run --nproc 2 train.py", "train.py"),
        ("env -C src python train.py", ""),
        ("uv run --directory=src train.py", ""),
        ("python /opt/bench.py", ""),
        ("python -m package.train", ""),
        ("torchrun -m package.train", ""),
        ("python", ""),
        ("bash -c true", ""),
    ],
)
def test_script_of_a_command_is_the_file_of_the_user(command: str, script: str) -> None:
    assert script_of(command.split()) == script
