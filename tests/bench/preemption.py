"""A real Kueue preempts a job with real ranks, and admits it again: steps lost, attempts counted.

The operator, the API server and Kueue are real. A pod of the low job is an agent with a rank on this machine;
it gets SIGTERM when its pod is deleted, as from a kubelet. The pods of the high job are simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.cluster import tools
from tests.integration.api import Api
from tests.integration.chart.conftest import Helm
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet, runs
from tests.integration.kueue import manager
from tests.integration.kueue.conftest import QueuedCluster, operated, with_kueue
from tests.support.ports import free_port
from tests.support.predicates import phase

Json = dict[str, Any]
ROUNDS = int(os.environ.get("DTJ_PREEMPTION_ROUNDS", "10"))
PODS = 2
TRAINED_STEPS = 20  # before each preemption
WITHIN_S = 120.0
EXIT_STOPPED = 75


class Kubelets(Kubelet):
    """Runs an agent with one rank for each pod of the job `low`.

    codes  exit codes of agents whose pods were deleted
    """

    def __init__(self, api: Api, namespace: str, folder: Path) -> None:
        super().__init__(api, namespace)
        self.steps, self.codes = folder / "steps", list[int]()
        self._folder_of_agents, self._port = folder, free_port()
        self._agents: dict[str, asyncio.subprocess.Process] = {}  # by the pod's uid
        self._stops: dict[str, asyncio.Task[int]] = {}

    async def start(self, name: str, **options: Any) -> None:
        """Start the agent, if the pod has one and it does not run yet, and say that the pod is ready."""
        uid = self.pods[name]["metadata"]["uid"]
        if name.startswith("low-") and uid not in self._agents:
            self._agents[uid] = await self._agent(name)
        await super().start(name, **options)

    async def _agent(self, name: str) -> asyncio.subprocess.Process:
        container = self.pods[name]["spec"]["containers"][0]
        given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        chosen = {key: given[key] for key in ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "DTJ_ATTEMPT")}
        chosen |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(self._port), "OUT": str(self.steps)}
        saved = str(self._folder_of_agents / "saved")
        words = ("run", "--checkpoint", saved, "-m", "tests.bench.programs.counts")
        with (self._folder_of_agents / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "dtj", *words),
                env=os.environ | chosen | {"OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )

    async def confirm_stopped(self, name: str, uid: str = "") -> None:
        """Terminate the agent, and remove the pod once it has exited."""
        if uid in self._agents:
            if uid not in self._stops:
                self._stops[uid] = asyncio.create_task(self._stop(name, uid))
            await self._stops[uid]
        await super().confirm_stopped(name, uid)

    async def _stop(self, name: str, uid: str) -> int:
        agent = self._agents[uid]
        agent.terminate()
        code = await agent.wait()
        self.codes.append(code)
        await self.finish(name, code)
        return code

    def kill_agents(self) -> None:
        """Kill the agents that still run, as after an error."""
        for agent in self._agents.values():
            if agent.returncode is None:
                agent.kill()

    def last_step(self) -> int:
        """The last step that rank 0 has recorded."""
        return self.all_steps()[-1] if self.all_steps() else 0

    def all_steps(self) -> list[int]:
        """All steps that rank 0 has recorded, in the order of time."""
        return [int(line) for line in self.steps.read_text().split()] if self.steps.exists() else []

    async def until_step(self, step: int) -> None:
        """Wait until rank 0 has recorded a step."""
        deadline = time.monotonic() + WITHIN_S
        while self.last_step() < step:
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in self._folder_of_agents.glob("*.log"))
                raise RuntimeError(f"no step {step} within {WITHIN_S} s:\n{logs}")
            await asyncio.sleep(0.05)


def main() -> None:
    """Measure and write the section of the page."""
    with planes() as (plane, folder):
        row = asyncio.run(preempted(plane, folder))
    head = ["preemptions", "agents that exited with 75", "steps lost, most", "restarts", "of them counted"]
    report.write("preemption", report.table(head, [row]))


@contextlib.contextmanager
def planes() -> Iterator[tuple[ControlPlane, Path]]:
    """A control plane with a real Kueue and the operator's rights, and a folder; exits where no Kueue is."""
    if manager.program() is None:
        sys.exit(manager.MISSING)
    with tempfile.TemporaryDirectory(prefix="dtj-preemption-") as name:
        folder = Path(name)
        with with_kueue(Helm(tools.ensure("helm")["helm"], folder / "helm"), folder) as plane:
            yield plane, folder


@contextlib.asynccontextmanager
async def low_job(plane: ControlPlane, folder: Path) -> AsyncIterator[tuple[QueuedCluster, Kubelets]]:
    """An operator, and a job with real ranks that has the whole quota of its queue; stopped at the end."""
    agents = folder / "agents"
    agents.mkdir()
    async with operated(plane) as cluster:
        kubelet = Kubelets(cluster.api, cluster.namespace, agents)
        playing = asyncio.create_task(kubelet.run())
        try:
            await cluster.open(PODS)
            await cluster.enqueue_counted("low")
            yield cluster, kubelet
            await cluster.change("low", suspend=True)
            await kubelet.until(lambda pods: not any(pod.startswith("low-") for pod in pods))
        finally:
            playing.cancel()
            kubelet.kill_agents()


async def preempted(plane: ControlPlane, folder: Path) -> list[object]:
    """Let jobs of a higher priority preempt the other one, ROUNDS times, and return the row."""
    async with low_job(plane, folder) as (cluster, kubelet):
        lost = [await one(cluster, kubelet, f"high-{number}") for number in range(ROUNDS)]
        restarts = (await cluster.job("low"))["status"]["restarts"]
        stopped = kubelet.codes.count(EXIT_STOPPED)
    total, counted = restarts["total"], restarts.get("counted", 0)
    return [ROUNDS, f"{stopped} of {PODS * ROUNDS}", max(lost), total, counted]


async def one(cluster: QueuedCluster, kubelet: Kubelets, high: str) -> int:
    """Let the low job train, be preempted, and train again; return how many steps it has repeated."""
    await kubelet.until_step(kubelet.last_step() + TRAINED_STEPS)
    await cluster.enqueue_counted(high, {"kueue.x-k8s.io/priority-class": cluster.namespace})
    pods = {f"{high}-{index}" for index in range(PODS)}
    await kubelet.until(lambda seen: all(name in seen and runs(seen[name]) for name in pods))
    before = len(kubelet.all_steps())
    for name in pods:
        await kubelet.finish(name)
    await cluster.until(phase("Succeeded"), high)
    await kubelet.until_step(kubelet.last_step() + 1)
    steps = kubelet.all_steps()
    return steps[before - 1] + 1 - steps[before]


if __name__ == "__main__":
    main()
