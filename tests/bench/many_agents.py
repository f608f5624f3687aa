"""A coordinator with thousands of agents: one process has a socket for each, and says what agents say.

The coordinator is the real one, in a process of its own, with its own store for each generation. The agents
are not: no rank runs behind them, and the network is this machine's loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dtj.agent.replica.heartbeats import interval_s
from dtj.agent.wire.link import KEEPALIVE_S, encode
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.protocol import PROTOCOL, Job, RankState, RestartBudget
from tests.bench import report
from tests.bench.agents import cpu_s, memory_mib
from tests.support.ports import free_port

AGENTS = tuple(map(int, os.environ.get("DTJ_MANY_AGENTS", "1000,5000,10000").split(",")))
PROCESSES = 8  # ranks of an agent
REST_S = 15.0
_STEP_S = 1.0
_LOST = 0.01  # share of the connections
_WITHIN_S = 180.0


@dataclass(kw_only=True)
class Taken:
    """Results for a job with this number of agents: seconds, and CPU of the coordinator's process."""

    agents: int
    formed_s: float = 0.0  # from the last hello until every agent has the order to form
    ready_s: float = 0.0  # from the first "ready" of a rank until every agent has the order to start
    rest_percent: float = 0.0  # of a core
    order_s: float = 0.0  # from the end of a rank until every agent has the order to form again
    order_mib: float = 0.0  # bytes of that order, to all agents
    healed_s: float = 0.0  # until every agent has the order to start again
    resumed_s: float = 0.0  # from the loss of 1 % of the connections until they are back
    memory_mib: float = 0.0


@dataclass(kw_only=True)
class Agent:
    """One connection, and what arrived over it."""

    replica: int
    sock: socket.socket
    generation: int = 0
    started: int = 0  # the newest generation that it has the order to start
    heard: int = 0  # bytes on this connection
    rest: bytes = b""
    order_bytes: int = 0  # of the last order to form

    @property
    def ranks(self) -> range:
        return range(self.replica * PROCESSES, (self.replica + 1) * PROCESSES)


@dataclass
class Agents:
    """All agents of a job, in one loop."""

    port: int
    agents: list[Agent] = field(default_factory=list)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def connect(self, replica: int, *, generation: int = 0) -> Agent:
        """A new connection and its hello; with a generation, that of an agent that is back."""
        sock = socket.create_connection(("127.0.0.1", self.port))
        agent = Agent(replica=replica, sock=sock, generation=generation)
        known = RankState(generation=generation, holds=True, is_ready=True)
        hello = {
            **{"protocol": PROTOCOL, "uid": "", "attempt": 0, "replica": replica, "restarts": 0},
            **{"incarnation": f"{replica:032}", "isStopping": False, "state": {}, "keeper": None},
            "processes": PROCESSES,
            "ranks": dict.fromkeys(agent.ranks, known) if generation else {},
        }
        sock.sendall(encode({"hello": hello}))
        sock.setblocking(False)
        self.selector.register(sock, selectors.EVENT_READ, agent)
        return agent

    def lose(self, agent: Agent) -> None:
        self.selector.unregister(agent.sock)
        agent.sock.close()

    def send(self, agent: Agent, message: dict[str, Any]) -> None:
        agent.sock.sendall(encode(message))

    def receive(self, timeout_s: float) -> None:
        """Take what has arrived."""
        for key, _ in self.selector.select(timeout_s):
            agent: Agent = key.data
            data = agent.sock.recv(1 << 20)
            assert data, f"the coordinator closed the connection of replica {agent.replica}"
            agent.heard += len(data)
            *lines, agent.rest = (agent.rest + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "form" in message:
                    agent.generation, agent.order_bytes = message["form"]["generation"], len(line) + 1
                elif "go" in message:
                    agent.started = message["go"]
                assert "refused" not in message, message

    def until(self, condition: Callable[[Agent], bool], since: float, what: str) -> float:
        """Seconds from `since` until the condition holds for all agents."""
        waiting, keepalive_at = list(self.agents), since + KEEPALIVE_S
        while waiting := [agent for agent in waiting if not condition(agent)]:
            self.receive(0.2)
            if time.monotonic() > keepalive_at:
                keepalive_at = time.monotonic() + KEEPALIVE_S
                for agent in self.agents:
                    self.send(agent, {"keepalive": True})
            if time.monotonic() - since > _WITHIN_S:
                raise TimeoutError(f"{len(waiting)} agents wait for {what}")
        return time.monotonic() - since

    def train(self, seconds: float) -> None:
        """Each agent sends its heartbeats and keepalives, at moments of its own."""
        every_s = interval_s(len(self.agents), of_rank_0=False)
        begun, beat = time.monotonic(), max(every_s, _STEP_S)
        shuffled = random.Random(1).sample(self.agents, len(self.agents))
        due = [(index / len(shuffled), agent) for index, agent in enumerate(shuffled)]
        rounds = 0
        while time.monotonic() - begun < seconds:
            for offset, agent in due:
                at = begun + (rounds + offset) * beat
                while (left := at - time.monotonic()) > 0:
                    self.receive(min(left, 0.2))
                step = int((at - begun) / _STEP_S)
                values = [agent.generation, step, None, [step, step * 0.5], at]
                self.send(agent, {"heartbeats": [{str(rank): values for rank in agent.ranks}]})
            rounds += 1


def main() -> None:
    """Measure and write the section `many_agents` of the page."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    taken = [measure(agents) for agents in AGENTS]
    head = [
        *("agents", "ranks", "formed after the last hello, s", "all ready to all started, s"),
        *("at rest, % of a core", "a heal's order to all, s", "its size, MiB", "healed, s"),
        *("1 % of the links back, s", "memory, MiB"),
    ]
    rows = [
        [
            *(f"{one.agents:,}", f"{one.agents * PROCESSES:,}", f"{one.formed_s:.1f}", f"{one.ready_s:.1f}"),
            *(f"{one.rest_percent:.0f}", f"{one.order_s:.2f}", f"{one.order_mib:.1f}"),
            *(f"{one.healed_s:.1f}", f"{one.resumed_s:.1f}", f"{one.memory_mib:.0f}"),
        ]
        for one in taken
    ]
    report.write("many_agents", report.table(head, rows))


def measure(agents: int) -> Taken:
    """One job of this size."""
    with coordinator(agents) as (pid, port):
        job, taken = Agents(port), Taken(agents=agents)
        job.agents = [job.connect(replica) for replica in range(agents)]
        taken.formed_s = job.until(lambda agent: agent.generation == 1, time.monotonic(), "generation 1")
        taken.ready_s = start(job, 1)
        for agent in job.agents:
            for rank in agent.ranks:
                job.send(agent, {"hold": [rank, True]})
        job.train(3.0)
        before = cpu_s(pid)
        job.train(REST_S)
        taken.rest_percent = 100 * (cpu_s(pid) - before) / REST_S
        dead = job.agents[agents // 2]
        ending = Ending(rank=dead.ranks.start, code=137, signal=9, at=datetime.now(UTC))
        job.send(dead, {"ended": [ending, 1]})
        begun = time.monotonic()
        taken.order_s = job.until(lambda agent: agent.generation == 2, begun, "generation 2")
        taken.order_mib = sum(agent.order_bytes for agent in job.agents) / 2**20
        taken.healed_s = taken.order_s + start(job, 2)
        begun = time.monotonic()
        for replica in range(0, agents, round(1 / _LOST)):
            job.lose(job.agents[replica])
            job.agents[replica] = job.connect(replica, generation=2)
        taken.resumed_s = job.until(lambda agent: agent.heard > 0, begun, "their coordinator")
        assert {agent.generation for agent in job.agents} == {2}, "a lost connection cost a generation"
        taken.memory_mib = memory_mib(pid, "Anonymous")
    print(taken, file=sys.stderr)
    return taken


def start(job: Agents, generation: int) -> float:
    """Seconds until all agents have the order to start, once all of their ranks are ready."""
    begun = time.monotonic()
    for agent in job.agents:
        for rank in agent.ranks:
            job.send(agent, {"ready": [rank, generation]})
    return job.until(lambda agent: agent.started == generation, begun, "the order to start")


@contextlib.contextmanager
def coordinator(agents: int) -> Iterator[tuple[int, int]]:
    """The process id and port of a coordinator for this number of agents."""
    port = free_port()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            coordinate(agents, port, lambda: os.write(write, b"."))
        except BaseException:  # noqa: BLE001 - the child must never return
            traceback.print_exc()
        finally:
            os._exit(1)
    try:
        os.close(write)
        assert os.read(read, 1), "the coordinator did not start"
        yield pid, port
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)


def coordinate(agents: int, port: int, is_ready: Callable[[], object]) -> None:
    """The loop of replica 0's agent, without ranks."""
    from dtj.agent.coordinator.coordinator import Coordinator
    from dtj.agent.coordinator.membership import Membership
    from dtj.agent.coordinator.restarts import Restarts
    from dtj.agent.coordinator.watch.hang import Watchdog
    from dtj.agent.open_files import raise_open_files
    from dtj.agent.rank.preload import preload

    raise_open_files()
    preload(1)
    selector = selectors.DefaultSelector()
    restarts = Restarts(budget=RestartBudget(restarts=1000))
    membership = Membership(job=Job(replicas=agents, processes=PROCESSES), restarts=restarts)
    log = (lambda line: print(line, file=sys.stderr)) if "DTJ_MANY_AGENTS_LOG" in os.environ else _discard
    found = Coordinator(membership, Watchdog(timeout_s=3600.0), selector, log=log)
    found.listen(port)
    is_ready()
    while True:
        for key, _ in selector.select(max(0.0, found.deadline - time.monotonic())):
            if selector.get_map().get(key.fd) is key:
                key.data()
        found.tick()


def _discard(_: str) -> None: ...
