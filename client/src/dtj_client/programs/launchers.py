"""Launchers of others as the program of a job with several pods. Pure.

Each pod runs the same command. A launcher whose options say that it is alone, or which pod it is in, would
train in each pod for itself or wait for pods that do not come.
"""

import re
import shlex
from collections.abc import Sequence
from itertools import dropwhile

from dtj_client import amounts
from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Json
from dtj_client.programs import accelerate, torchrun, wrappers

DEEPSPEED = "deepspeed starts ranks on other machines by ssh, or else trains in each pod for itself"
DEEPSPEED_FIX = (
    "write torchrun instead: deepspeed.init_distributed() reads its variables; the local rank is in "
    "LOCAL_RANK, not in --local_rank"
)
# Python with its own options, before a module or file that starts the ranks of a pod itself.
_LAUNCHER_IN_PYTHON = re.compile(
    rf"\S*{torchrun.PYTHON} (?:-{torchrun.OPTIONS_OF_PYTHON}+ |-[XW] ?\S+ )*"
    rf"(?:-{torchrun.OPTIONS_OF_PYTHON}*m ?"
    r"(?:torch\.distributed\.(?:run|launch)|accelerate\.commands\.\S+|dtj"
    r"|deepspeed\.launcher\.\S+|lightning(?:[._]fabric\S*)?)"
    r"|(?:\S*/)?(?:torchrun|accelerate|accelerate-launch|deepspeed|dtj))(?: |$)"
)
_OF_MPI = ("srun", "mpirun", "mpiexec", "horovodrun")
_CHANGE_FOLDER = ("-C", "--chdir", "--cwd", "--directory")
_PLAIN_OPTION = re.compile(f"-{torchrun.OPTIONS_OF_PYTHON}+")
_THIS_MACHINE = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[?::1\]?)(:\d+)?")


def for_pods(words: Sequence[str], replicas: int, *, on_cpus: bool) -> list[str]:
    """Return the command for several pods. Raises ClientError for one that is for one machine only.

    on_cpus  the pods have no accelerators
    """
    wrapper, program = wrappers.split(words)
    name = program[0].rpartition("/")[2]
    if name == "deepspeed":
        raise ClientError(DEEPSPEED, DEEPSPEED_FIX)
    if name in _OF_MPI:
        raise ClientError(
            f"{name} starts ranks on machines that Slurm or ssh gives it, which pods do not have",
            "write torchrun or dtj run instead: the job says where the ranks are",
        )
    if launch := accelerate.clean(program, on_cpus=on_cpus):
        if launch.left_out:
            said = ", ".join(f"--{name} {value}" for name, value in launch.left_out)
            raise ClientError(
                f"{said}: this would be the same in all {replicas} pods",
                "leave it out: accelerate launch gets the place of each pod from the job",
            )
        return [*wrapper, *launch.words]
    if launch := torchrun.clean(program) or torchrun.of_dtj(program):
        ranks = [] if launch.processes is None else [f"--nproc-per-node={launch.processes}"]
        left = shlex.join([*wrapper, *launch.words[: launch.size], *ranks, *launch.words[launch.size :]])
        for name, value in launch.left_out:
            if _is_for_one_machine(name, value, replicas):
                said = f"--{name} {value}".strip()
                raise ClientError(
                    f"{said} would be the same in all {replicas} pods, which would not train together",
                    f"leave out what the job says: -- {left}",
                )
    return list(words)


def script_of(words: Sequence[str]) -> str:
    """The file of the user that a command runs, behind wrappers, launchers, python and shells.

    The program itself if it is none of these. It is "" for a module, for a file that is named absolutely,
    and so of the image, and behind a wrapper that changes the folder.
    """
    wrapper, program = wrappers.split(words)
    if any(word.partition("=")[0] in _CHANGE_FOLDER for word in wrapper):
        return ""
    if launch := torchrun.clean(program) or torchrun.of_dtj(program):
        rest = launch.words[launch.size :]
    elif re.fullmatch(torchrun.PYTHON, program[0].rpartition("/")[2]):
        rest = list(dropwhile(_PLAIN_OPTION.fullmatch, program[1:]))
    elif program[0].rpartition("/")[2] in torchrun.SHELLS:
        rest = program[1:]
    else:
        return program[0]
    return rest[0] if rest and not rest[0].startswith(("-", "/")) else ""


def count_processes(spec: Json, *, of_pods: bool = False) -> str:
    """Let a command that starts one process be one rank, however many GPUs its pod has; return a note.

    of_pods  RANK and WORLD_SIZE count pods, as in a PyTorchJob that names no number of processes
    """
    trainer = next(c for c in spec["template"]["spec"]["containers"] if c["name"] == "trainer")
    words = [str(word) for word in (*(trainer.get("command") or ()), *(trainer.get("args") or ()))]
    gpus = amounts.counted(amounts.limits_of(trainer)).values()
    if spec.get("processesPerReplica", "auto") != "auto" or not words:
        return ""
    if sum(int(each) for each in gpus if str(each).isdecimal()) < 2:
        return ""
    _, words = wrappers.split(words)
    program = words[0].rpartition("/")[2]
    is_python = program.endswith(".py") or re.fullmatch(torchrun.PYTHON, program)
    if is_python and not _LAUNCHER_IN_PYTHON.match(" ".join(words)):
        spec["processesPerReplica"] = 1
        return (
            f"processesPerReplica: 1: {program} starts one process in each pod; with torchrun or dtj run as "
            "the command each GPU has one without this line"
        )
    if not of_pods or program not in torchrun.SHELLS:
        return ""
    if re.search(r"\$\{?(RANK|WORLD_SIZE)\b", " ".join(words)):
        spec["processesPerReplica"] = 1
        return "processesPerReplica: 1: RANK and WORLD_SIZE in the command count pods"
    return (
        "RANK and WORLD_SIZE count ranks, in a PyTorchJob pods: a script that uses them to say where its "
        "pod is needs NODE_RANK and NNODES, or processesPerReplica: 1"
    )


def _is_for_one_machine(name: str, value: str, replicas: int) -> bool:
    match name:
        case "standalone":
            return True
        case "nnodes":
            return value in ("1", "1:1") or (value.isdigit() and int(value) != replicas)
        case "node-rank":
            return value.isdigit()
        case "master-addr" | "rdzv-endpoint":
            return bool(_THIS_MACHINE.fullmatch(value))
    return False
