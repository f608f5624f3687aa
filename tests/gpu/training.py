"""Runs the program of these tests: in one process, or in two pods that share one GPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support.ports import free_port

PROGRAM = Path(__file__).with_name("program.py")
ROOT = Path(__file__).parents[2]
DTJ = (sys.executable, "-m", "dtj", "run")
ON_GPU = torch.cuda.is_available()
TRIED_ON_CPU = os.environ.get("DTJ_TEST_DEVICE") == "cpu"
NO_GPU = "torch finds no GPU here (DTJ_TEST_DEVICE=cpu tries the tests with a tiny model)"
LIMIT_S = 240


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What the program wrote, and what the agent of each pod printed."""

    found: dict[str, Any]
    errs: tuple[str, ...]

    @property
    def err(self) -> str:
        """What all agents printed."""
        return "\n".join(self.errs)

    @property
    def losses(self) -> dict[int, float]:
        """Step, from 0 -> its loss, for the steps of the last life of the process."""
        return {int(step): loss for step, loss in self.found["losses"].items()}


Train = Callable[..., Trained]


def training(folder: Path) -> Train:
    """train("--precision", "bf16", pods=2, STEPS=8): flags of `dtj run`, and environment variables."""

    def train(*flags: object, pods: int = 1, **env: object) -> Trained:
        out = folder / f"found-{len(list(folder.glob('found-*')))}"
        given = {name: str(value) for name, value in {"OUT": out, **env}.items()}
        ended = run_pods([*map(str, flags), str(PROGRAM)], pods=pods, env=given)
        for number, pod in enumerate(ended):
            print(f"pod {number}:\n{pod.stderr}")
            assert pod.returncode == 0, pod.stderr
        trained = Trained(found=json.loads(out.read_text()), errs=tuple(pod.stderr for pod in ended))
        assert trained.found["device"] == ("cuda" if ON_GPU else "cpu")
        return trained

    return train


def run_pods(words: list[str], *, pods: int, env: dict[str, str]) -> list[subprocess.CompletedProcess[str]]:
    """`dtj run` in each pod, with the operator's variables if there are several, until all have ended."""
    port = free_port()
    with ExitStack() as stack:
        started = []
        for number in range(pods):
            pod = subprocess.Popen(
                [*DTJ, *words],
                env=os.environ | (place(number, of=pods, port=port) if pods > 1 else {}) | env,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(pod.kill)
            started.append(pod)
        return list(ends(started))


def place(number: int, *, of: int, port: int) -> dict[str, str]:
    """The variables of a pod.

    NCCL refuses two ranks on one GPU of one machine. With an id of its own for each pod it takes them for two
    machines, and sends over the loopback interface.
    """
    return {
        "NNODES": str(of),
        "NPROC_PER_NODE": "1",
        "NODE_RANK": str(number),
        "DTJ_REPLICA_INDEX": str(number),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "DTJ_JOB": "gpu",
        "DTJ_JOB_UID": "0b5c",
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
        "NCCL_HOSTID": f"pod-{number}",
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def ends(started: list[subprocess.Popen[str]]) -> Iterator[subprocess.CompletedProcess[str]]:
    """Each process with its output, read from all at the same time."""
    with ThreadPoolExecutor(len(started)) as threads:
        for pod, (out, err) in zip(started, threads.map(output_of, started), strict=True):
            yield subprocess.CompletedProcess(pod.args, pod.returncode, out, err)


def output_of(pod: "subprocess.Popen[str]") -> tuple[str, str]:
    try:
        return pod.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        pod.kill()
        return pod.communicate()
