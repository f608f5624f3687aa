"""Environment -> World: which rank this process is, on which device, in which process group.

The launcher sets the variables and `start.py` calls this module; all other code only sees the World.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist

from dtj import contract
from dtj.errors import DeviceError, RecipeError
from dtj.ranks.device_files import NVIDIA, gpus_given, has_gpu

# The first rendezvous waits for pods whose images are still being pulled.
RENDEZVOUS_TIMEOUT = timedelta(minutes=30)
# Of a collective if an agent watches the ranks: it ends a hang much earlier, and a pause may take an hour.
_WATCHED_TIMEOUT = timedelta(days=1)
# A container that was given no GPU has no driver, but if it is privileged, the files of all GPUs.
_NOT_GIVEN = "no NVIDIA driver"


@dataclass(frozen=True, kw_only=True)
class World:
    """Rank and size of this process's world. Without variables: a single process.

    local_rank  rank among the processes of this node
    local_size  number of processes of this node
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Raise RecipeError if variables are missing, malformed or contradictory."""
        size = _number(env, contract.WORLD_SIZE, default=1)
        if contract.RANK in env:
            rank = _number(env, contract.RANK)
            local_rank = _number(env, contract.LOCAL_RANK, default=0)
        elif size > 1 and _number(env, contract.NPROC_PER_NODE, default=1) > 1:
            raise RecipeError(
                f"{contract.RANK} is not set, but {contract.NPROC_PER_NODE} is above 1: no launcher set it",
                fix="start the script with `dtj run script.py` (or torchrun) instead of python",
            )
        else:
            rank, local_rank = _number(env, contract.NODE_RANK, default=0), 0
        if not 0 <= rank < size:
            raise RecipeError(
                f"{contract.RANK} is {rank}, but {contract.WORLD_SIZE} is {size}; ranks count from 0",
                fix=f"correct {contract.RANK} or {contract.WORLD_SIZE}; `dtj run` sets both",
            )
        if size > 1:
            missing = [name for name in (contract.MASTER_ADDR, contract.MASTER_PORT) if not env.get(name)]
            if missing:
                what = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
                raise RecipeError(
                    f"{contract.WORLD_SIZE} is {size} but {what}",
                    fix="start the script with `dtj run`, or set the address and port of rank 0",
                )
        local_size = _number(env, contract.LOCAL_WORLD_SIZE, default=1)
        return cls(rank=rank, size=size, local_rank=local_rank, local_size=local_size)


def _number(env: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    text = env.get(name, "")
    if not text and default is not None:
        return default
    if not text.strip().isdecimal():
        raise RecipeError(f"{name} is {text!r}, expected a whole number of at least 0", fix=f"correct {name}")
    return int(text)


def check_default_device() -> None:
    """RecipeError if tensors that name no device are not in host memory, as ranks need it to agree."""
    if (default := torch.get_default_device()).type != "cpu":
        raise RecipeError(
            f"torch.set_default_device({str(default)!r}) is in effect, also for what must be in host memory",
            fix="leave it out: run.parallel moves the model, and samples come on the device of their rank",
        )


def choose_devices(world: World, *, requested: str | None, count: int = 1) -> tuple[torch.device, ...]:
    """This rank's `count` accelerators, or the CPU repeated `count` times if there are none.

    The first device is made current before any process group exists: otherwise every rank would open a
    context on the machine's first GPU.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None and str(requested or "cuda") == "cuda":
        check_gpu(os.environ)
    kind = str(requested or (found.type if found else "cpu"))  # it may be a torch.device
    if kind == "cpu" or (kind == "mps" and world.size > 1):  # one Apple GPU cannot be shared by ranks
        return (torch.device("cpu"),) * count
    if found is None or found.type != kind:
        raise RecipeError(
            f"device {kind!r} was requested, but this machine has {found.type if found else 'cpu'}",
            fix="do not pass a device: the accelerator of this machine is used, else the CPU",
        )
    available = torch.accelerator.device_count()
    if kind == "cuda" and (world.local_rank + 1) * count > available:
        check_all_gpus(os.environ, available)
    indices = devices_of(world.local_rank, count=count, kind=kind, available=available)
    torch.accelerator.set_device_index(indices[0])
    return tuple(torch.device(kind, index) if kind != "mps" else torch.device(kind) for index in indices)


def check_gpu(env: Mapping[str, str], folder: Path = Path("/dev")) -> None:
    """DeviceError if this machine has a GPU that cannot be used: torch says that there is none.

    This rank would train on the CPU, or wait for ranks that use NCCL.
    """
    built_for = torch.accelerator.current_accelerator()
    if built_for is None or built_for.type != "cuda" or not has_gpu(env, folder, (NVIDIA,)):
        return
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        if _NOT_GIVEN in why:
            return
        raise DeviceError(
            f"this machine has a GPU, but it cannot be used: {why}",
            fix="look for its error with nvidia-smi; to train on the CPU, set CUDA_VISIBLE_DEVICES=-1",
        ) from error


def check_all_gpus(env: Mapping[str, str], available: int, folder: Path = Path("/dev")) -> None:
    """DeviceError if the container was given more GPUs than CUDA finds: one has failed, and is left out."""
    given = gpus_given(env, folder)
    if given > available:
        raise DeviceError(
            f"this machine has {given} GPUs, but only {available} of them can be used",
            fix="look for the error of the missing one with nvidia-smi and dmesg",
        )


def devices_of(local_rank: int, *, count: int, kind: str, available: int) -> range:
    """Indices of a rank's own devices; each rank of the node uses `count` of the `available` devices."""
    if (local_rank + 1) * count > available:
        most = available // count
        a_rank = f", and each rank uses {count}" if count > 1 else ""
        raise RecipeError(
            f"local rank {local_rank} has no {kind} device: this machine has {available}{a_rank}",
            fix=f"start at most {most} processes per node" if most else "use fewer --devices",
        )
    return range(local_rank * count, (local_rank + 1) * count)


def open_group(
    world: World,
    devices: tuple[torch.device, ...],
    *,
    store: "torch._C._distributed_c10d.Store | None",
    timeout: timedelta,
) -> "dist.ProcessGroup":
    """Join the job's default process group; return a second, CPU-only group for agreements between ranks.

    devices  of this rank; the default group is bound to the device if there is only one
    store    of the rendezvous; None: `env://`
    timeout  for connecting; afterwards collectives have that of `set_collective_timeout`
    """
    if store is None:
        choose_store()
    device = devices[0]
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        store=store,
        rank=world.rank,
        world_size=world.size,
        timeout=timeout,
        device_id=device if device.type != "cpu" and len(devices) == 1 else None,
    )
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timeout)  # type: ignore[assignment]
    set_collective_timeout(None)
    set_collective_timeout(group)
    return group


def collective_timeout() -> timedelta:
    """How long a collective may take: 30 minutes, or a day under an agent."""
    return _WATCHED_TIMEOUT if contract.GENERATION in os.environ else RENDEZVOUS_TIMEOUT


def set_collective_timeout(group: "dist.ProcessGroup | None") -> None:
    """Let a collective of this group take so long; None: the default group."""
    change = getattr(dist, "set_timeout", None)  # since torch 2.15
    (change or dist.distributed_c10d._set_pg_timeout)(collective_timeout(), group)


def choose_store() -> None:
    """Make `env://` work if torch was built without libuv, as in the packages of Linux distributions.

    The answer is kept in the environment. What is passed as the store's socket is none, so torch fails either
    way, and no store starts. The store's own client could wait for minutes, for example if a container engine
    redirects the port that the kernel chose.
    """
    if "USE_LIBUV" in os.environ:
        return
    with Path(os.devnull).open() as no_socket:
        try:
            dist.TCPStore(  # type: ignore[attr-defined]
                "127.0.0.1", 0, is_master=True, use_libuv=True, master_listen_fd=no_socket.fileno()
            )
        except RuntimeError as error:
            # "use_libuv was requested but PyTorch was built without libuv support"
            os.environ["USE_LIBUV"] = "0" if "without libuv" in str(error) else "1"
