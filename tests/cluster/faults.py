"""Breaks things on purpose: a node hangs or loses power, a pod is cut off, a rank is killed or stopped.

Nodes are containers, so the engine can freeze and kill them. The processes of a pod are found and signalled
on its node, bypassing Kubernetes. Works only on clusters that we created.
"""

import contextlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.cluster import kind
from tests.cluster.errors import ClusterError
from tests.cluster.kind import Cluster
from tests.support.kubectl import Json, Kubectl

AGENT_PORT = 29400

# For each process of the container $1, prints its ids, command and rank, for `parse_processes`.
LIST_PROCESSES = r"""
for pid in $(ctr --namespace=k8s.io tasks ps "$1" | awk 'NR > 1 { print $1 }'); do
    [ -r "/proc/$pid/environ" ] || continue
    echo "pid $(awk '/^NSpid:/ { print $2, $NF }' "/proc/$pid/status")"
    echo "command $(tr '\0' ' ' < "/proc/$pid/cmdline")"
    tr '\0' '\n' < "/proc/$pid/environ" | sed -n 's/^LOCAL_RANK=/local_rank /p'
done
"""


# Prints the labels of all containers that have a running process, including those of pods.
LIST_LIVING = """
for id in $(ctr --namespace=k8s.io tasks list --quiet); do
    ctr --namespace=k8s.io containers info "$id"
done
"""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process of a pod.

    pid         on its node, where signals are sent
    pid_in_pod  in the container's pid namespace
    local_rank  from its environment; None if not set there
    """

    node: str
    pid: int
    pid_in_pod: int
    command: str
    local_rank: int | None


@contextlib.contextmanager
def paused(cluster: Cluster, node: str) -> Iterator[None]:
    """A node that hangs: nothing on it runs, nothing answers, no connection is closed."""
    pause(cluster, node)
    try:
        yield
    finally:
        cluster.runtime("unpause", node)


def pause(cluster: Cluster, node: str, *, within_s: float = 120) -> None:
    """Stop all processes of a node; one that waits for the disk can only be stopped after that."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            cluster.runtime("pause", node)
        except ClusterError as error:
            if "unable to freeze" not in str(error) or time.monotonic() > deadline:
                raise
        else:
            return


@contextlib.contextmanager
def without_power(cluster: Cluster, node: str) -> Iterator[None]:
    """A node that loses power. When the block ends it is started again, and is ready when this returns."""
    leases = replace(cluster.kubectl, namespace="kube-node-lease")
    cluster.runtime("kill", node)
    try:
        yield
    finally:
        last = heartbeat(leases.get("lease", node))
        cluster.runtime("start", node)
        # The API server still reports a dead node as ready for a while: wait for a new heartbeat.
        leases.until("lease", node, lambda seen: heartbeat(seen) > last, within_s=kind.READY_WITHIN_S)
        if not kind.settle(cluster, within_s=kind.READY_WITHIN_S):
            raise ClusterError(
                f"node {node} did not become ready after its restart", fix="make cluster-delete cluster"
            )


@contextlib.contextmanager
def cut_off(cluster: Cluster, pod: Json, others: Sequence[Json]) -> Iterator[None]:
    """Drop a pod's packets to and from the `others`, on its node. Everything else still reaches the pod."""
    node, address = pod["spec"]["nodeName"], pod["status"]["podIP"]
    pairs = [(address, other["status"]["podIP"]) for other in others]
    rules = [("-s", a, "-d", b, "-j", "DROP") for a, b in pairs + [(b, a) for a, b in pairs]]
    with contextlib.ExitStack() as stack:
        for rule in rules:
            on_node(cluster, node, "iptables", "-I", "FORWARD", *rule)
            stack.callback(on_node, cluster, node, "iptables", "-D", "FORWARD", *rule)
        yield


def heartbeat(lease: Json | None) -> str:
    """When a kubelet last renewed its lease. These timestamps sort as text."""
    return str(lease["spec"].get("renewTime", "")) if lease else ""


def on_node(cluster: Cluster, node: str, *command: str) -> str:
    """Run a command on a node, as root, and return what it printed."""
    return cluster.runtime("exec", node, *command)


def signal_rank(
    cluster: Cluster, kubectl: Kubectl, pod: str, name: str = "KILL", *, local_rank: int = 0
) -> Process:
    """Send a signal, such as "KILL" or "STOP", to one rank of a pod; return the process that got it.

    kubectl  for the pod's namespace
    """
    process = rank(cluster, kubectl, pod, local_rank=local_rank)
    send(cluster, process, name)
    return process


def send(cluster: Cluster, process: Process, signal: str) -> float:
    """Send a signal, such as "KILL", to a process; return when, in Unix time by its node's clock."""
    script = f"date +%s.%N; kill -{signal} {process.pid}"
    return float(on_node(cluster, process.node, "sh", "-c", script))


def rank(cluster: Cluster, kubectl: Kubectl, pod: str, *, local_rank: int = 0) -> Process:
    """The process of a rank, according to the pod's agent if it has one, else by its environment."""
    manifest = kubectl.get("pod", pod)
    if manifest is None:
        raise ClusterError(f"pod {pod} not found in namespace {kubectl.namespace}")
    found = processes(cluster, manifest)
    chosen = pick_rank(found, local_rank=local_rank, agent=ask_agent(cluster, manifest))
    if chosen is None:
        seen = "\n".join(f"    | {each}" for each in found)
        raise ClusterError(f"pod {pod} has no process with local rank {local_rank}; its processes:\n{seen}")
    return chosen


def pick_rank(found: list[Process], *, local_rank: int, agent: Json | None) -> Process | None:
    """Return the process of a rank, or None.

    agent  the pod's /status, None if no agent answers; the ranks that an agent forks share its environment
    """
    if agent is not None:
        pids = [each["pid"] for each in sorted(agent["ranks"], key=lambda each: int(each["rank"]))]
        wanted = pids[local_rank] if local_rank < len(pids) else None
        return next((process for process in found if process.pid_in_pod == wanted), None)
    # If a replica has one rank, torchrun itself has that rank's environment; its child has the higher pid.
    same = [process for process in found if process.local_rank == local_rank]
    return max(same, key=lambda process: process.pid_in_pod, default=None)


def pods_alive(cluster: Cluster, node: str) -> set[str]:
    """The uids of the pods that have a running process on a node, whatever the API server reports."""
    return set(
        re.findall(r'"io.kubernetes.pod.uid": "([^"]+)"', on_node(cluster, node, "sh", "-c", LIST_LIVING))
    )


def processes(cluster: Cluster, pod: Json) -> list[Process]:
    """All processes of a pod's training container."""
    node = pod["spec"]["nodeName"]
    listed = on_node(cluster, node, "sh", "-c", LIST_PROCESSES, "sh", container_id(pod))
    return parse_processes(node, listed)


def parse_processes(node: str, listed: str) -> list[Process]:
    """Read what LIST_PROCESSES printed."""
    found = []
    for record in re.split(r"^pid ", listed, flags=re.MULTILINE)[1:]:
        (pids, *rest) = record.splitlines()
        facts = dict(line.partition(" ")[::2] for line in rest)
        pid, pid_in_pod = map(int, pids.split())
        local_rank = int(facts["local_rank"]) if "local_rank" in facts else None
        command = facts.get("command", "").strip()
        found.append(
            Process(node=node, pid=pid, pid_in_pod=pid_in_pod, command=command, local_rank=local_rank)
        )
    return found


def container_id(pod: Json) -> str:
    """The id, in containerd, of the container named trainer, else of the first container."""
    statuses = {each["name"]: each for each in pod["status"].get("containerStatuses", [])}
    names = [container["name"] for container in pod["spec"]["containers"]]
    name = "trainer" if "trainer" in names else names[0]
    full_id: str = statuses.get(name, {}).get("containerID", "")
    if not full_id:
        raise ClusterError(f"container {name} of pod {pod['metadata']['name']} has not started yet")
    return full_id.rpartition("/")[2]


def ask_agent(cluster: Cluster, pod: Json) -> Json | None:
    """The /status of a pod's agent; None if no agent answers."""
    url = f"http://{pod['status']['podIP']}:{AGENT_PORT}/status"
    try:
        answer = on_node(
            cluster, pod["spec"]["nodeName"], "curl", "--silent", "--fail", "--max-time", "5", url
        )
    except ClusterError:
        return None
    document: Json = json.loads(answer)
    return document
