"""Environment and flags -> the ranks that this agent runs, and the variables of each. Pure.

In a pod the operator sets the variables; on a laptop nothing is set and everything is derived.
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dtj import contract
from dtj.agent.wire.protocol import Limits
from dtj.errors import RecipeError
from dtj.parallel.layout import sizes_of
from dtj.settings import STRATEGIES, variable

_CONTROL_GROUPS = Path("/sys/fs/cgroup")  # of the container
# Settings of torch's libraries, unless the user has made them. gloo connects each rank to every other; its
# two cut the requests to the store for that. All ranks of a job must have the same.
_OF_LIBRARIES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "GLOO_ENABLE_STORE_V2_API": "1",
    "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER": "1",
}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """This replica among all `nnodes`, in torchrun's terms; each has `nproc` ranks.

    The agents connect to master_addr:master_port, unless there is only one.
    run_id  of the job, and role, the name of its ranks, as torchrun calls them
    limits  of an elastic job; nnodes is then its initial size
    restarts  of the job before this pod was created
    """

    nproc: int
    node_rank: int
    nnodes: int
    master_addr: str
    master_port: int
    run_id: str
    role: str = "default"
    limits: Limits | None = None
    restarts: int = 0

    @classmethod
    def read(cls, env: Mapping[str, str], *, nproc: int | None) -> Self:
        """RecipeError if the variables contradict each other or the flag.

        nproc  the flag; None takes the environment's value, else 1
        """
        nproc = nproc if nproc is not None else number(env, contract.NPROC_PER_NODE, default=1)
        nnodes = number(env, contract.NNODES, default=1)
        node_rank = number(env, contract.NODE_RANK, default=0, least=0)
        if nproc < 1:
            raise RecipeError(
                f"--nproc is {nproc}, expected at least 1",
                fix="pass the number of processes to start on this machine",
            )
        limits = _limits(env, nproc=nproc)
        if node_rank >= (limits.most if limits else nnodes):
            raise RecipeError(
                f"{contract.NODE_RANK} is {node_rank}, but {contract.NNODES} is {nnodes}; ranks start at 0",
                fix=f"correct {contract.NODE_RANK} or {contract.NNODES}",
            )
        stated = number(env, contract.WORLD_SIZE, default=nproc * nnodes)
        if stated != nproc * nnodes:
            said = "leave out --nproc, --nnodes and --standalone: processesPerReplica and replicas of the job"
            raise RecipeError(
                f"{contract.WORLD_SIZE} is {stated}, but {nnodes} x {nproc} processes = {nproc * nnodes}",
                fix=f"{said} say both"
                if contract.JOB in env
                else f"leave out --nproc, or unset {contract.WORLD_SIZE}",
            )
        if (limits.most if limits else nnodes) > 1 and not env.get(contract.MASTER_ADDR):
            raise RecipeError(
                f"{contract.NNODES} is {nnodes}, but {contract.MASTER_ADDR} is not set",
                fix=f"set {contract.MASTER_ADDR} and {contract.MASTER_PORT} to the address of rank 0",
            )
        return cls(
            nproc=nproc,
            node_rank=node_rank,
            nnodes=nnodes,
            master_addr=env.get(contract.MASTER_ADDR) or "127.0.0.1",
            master_port=number(env, contract.MASTER_PORT, default=29500),
            run_id=env.get(contract.JOB_UID) or env.get(contract.RUN_ID) or "none",
            role=env.get("ROLE_NAME") or "default",
            limits=limits,
            restarts=number(env, contract.RESTARTS, default=0, least=0),
        )

    @property
    def ranks(self) -> range:
        """Global ranks of this replica."""
        return range(self.node_rank * self.nproc, (self.node_rank + 1) * self.nproc)

    def env_of(
        self, rank: int, *, generation: int, store: tuple[str, int], heals: bool, connect_s: float
    ) -> dict[str, str]:
        """The variables that torchrun would set, and those of the generation.

        store      address and port of the generation's store
        heals      other ranks of the generation hold the run in memory
        connect_s  how long it may take to reach all ranks
        """
        local, world = rank - self.ranks.start, self.nnodes * self.nproc
        values = {
            contract.RANK: rank,
            contract.LOCAL_RANK: local,
            contract.WORLD_SIZE: world,
            contract.LOCAL_WORLD_SIZE: self.nproc,
            contract.NODE_RANK: self.node_rank,
            contract.NNODES: self.nnodes,
            contract.NPROC_PER_NODE: self.nproc,
            contract.MASTER_ADDR: store[0],
            contract.MASTER_PORT: store[1],
            # A script that is alone may open groups of its own processes.
            contract.USE_AGENT_STORE: world > 1,
            contract.RUN_ID: self.run_id,
            contract.RESTART_COUNT: generation - 1,
            **{name: os.environ.get(name, value) for name, value in _OF_LIBRARIES.items()},
            contract.GENERATION: generation,
            contract.HEALING: int(heals),
            contract.CONNECT_SECONDS: connect_s,
            "ROLE_NAME": self.role,
            "GROUP_RANK": self.node_rank,
            "GROUP_WORLD_SIZE": self.nnodes,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": world,
        }
        return {name: str(value) for name, value in values.items()}


def threads(env: Mapping[str, str], *, nproc: int, groups: Path = _CONTROL_GROUPS) -> int:
    """Threads per rank: OMP_NUM_THREADS if set, else its share of the CPUs that this process may use.

    The operator sets the variable from the limit of the template; a namespace's LimitRange may set another.
    """
    stated = env.get("OMP_NUM_THREADS", "")
    if stated.isdecimal() and int(stated) > 0:
        return int(stated)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, _cpu_limit(groups)) // nproc)


def unused_gpus(nproc: int, *, gpus: int, in_job: bool) -> str:
    """What to tell the user if the container has more GPUs than ranks; empty otherwise."""
    if gpus <= nproc:
        return ""
    more = f"processesPerReplica: {gpus}" if in_job else f"--nproc {gpus}"
    ranks = "1 rank" if nproc == 1 else f"{nproc} ranks"
    return (
        f"this container has {gpus} GPUs and {ranks}: unless a rank uses several, GPUs are idle; fix: {more}"
    )


def _cpu_limit(groups: Path) -> int:
    """CPUs of the container by its control group, of version 2 or 1; as good as infinite without a limit."""
    v1 = [groups / "cpu" / f"cpu.cfs_{each}_us" for each in ("quota", "period")]
    for files in ([groups / "cpu.max"], v1):  # microseconds of processor time, and in how many
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # absent; or "max": no limit
            allowed, period = map(int, " ".join(file.read_text() for file in files).split())
            if allowed > 0:  # -1 in version 1: no limit
                return allowed // period
    return sys.maxsize


def _limits(env: Mapping[str, str], *, nproc: int) -> Limits | None:
    most = number(env, contract.MAX_REPLICAS, default=1)
    least = number(env, contract.MIN_REPLICAS, default=most)
    if least >= most:
        return None
    sizes = range(least, most + 1)
    return Limits(least, most, frozenset(n for n in sizes if not _fits(env, ranks=n * nproc, nproc=nproc)))


def _fits(env: Mapping[str, str], *, ranks: int, nproc: int) -> bool:
    """Whether so many ranks form the grid of --mesh; True if the program says which strategy it is for."""
    strategy, mesh = (env.get(variable(name)) for name in ("parallel", "mesh"))
    if not (strategy and mesh) or strategy not in STRATEGIES:
        return True
    try:
        sizes_of(strategy, mesh, ranks=ranks, local=nproc)
    except RecipeError:
        return False
    return True


def number(env: Mapping[str, str], name: str, *, default: int, least: int = 1) -> int:
    """An integer from the environment; if it is not one, a RecipeError that names the variable."""
    text = env.get(name, "")
    if text and (not text.isdecimal() or int(text) < least):
        raise RecipeError(
            f"{name} is {text!r}, expected a whole number of at least {least}", fix=f"correct {name}"
        )
    return int(text) if text else default
