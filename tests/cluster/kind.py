"""The three-node cluster: made, recognised when it is still good, made anew when it is not, removed."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.cluster import cni, config, engine, node_image, proc, tools
from tests.cluster.engine import Engine
from tests.cluster.errors import ClusterError
from tests.support.kubectl import Kubectl

KEY_LABEL = "dtj.dev/cluster-key"  # on every node: what the cluster was made of
SHARED_FOLDER = "/var/lib/dtj-shared"  # one folder, seen by all nodes: stands in for shared storage
GIB = 6  # three nodes with their unpacked images, before any of ours
READY_WITHIN_S = 180


class Health(Enum):
    """What is to be done about a cluster."""

    ABSENT = "there is none"
    GOOD = "it is ready"
    PAUSED = "some of its nodes are paused"
    DEAD = "some of its nodes do not run"
    OUTDATED = "it was made by another version of this checkout"
    UNREADY = "its API server or some of its nodes are not ready"


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What can be seen of a cluster from outside.

    containers  state of each node's container, as the engine names it
    answering   nodes in whose container a command can be run
    ready       nodes that the API server calls ready; empty where it does not answer
    key         what the cluster was made of, by its node's label; None where the API server does not answer
    """

    containers: Mapping[str, str]
    answering: frozenset[str] = frozenset()
    ready: frozenset[str] = frozenset()
    key: str | None = None


def judge(seen: Observed, *, expected: frozenset[str], key: str) -> Health:
    """Decide what a cluster is good for. The order matters: a dead node makes all other questions moot."""
    if not seen.containers:
        return Health.ABSENT
    states = {name: seen.containers.get(name, "missing") for name in expected}
    if any(state == "paused" for state in states.values()) and set(states.values()) <= {"running", "paused"}:
        return Health.PAUSED
    # Where somebody killed a container's processes behind the engine's back, it still says "running".
    if set(states.values()) != {"running"} or not expected <= seen.answering:
        return Health.DEAD
    if seen.key is not None and seen.key != key:
        return Health.OUTDATED
    return Health.GOOD if expected <= seen.ready else Health.UNREADY


def node_names(cluster: str) -> tuple[str, ...]:
    """As kind names them: the control plane first."""
    return (f"{cluster}-control-plane", f"{cluster}-worker", *(f"{cluster}-worker{n}" for n in range(2, config.WORKERS + 1)))


def workers() -> tuple[str, ...]:
    return node_names(config.cluster_name())[1:]


def ensure() -> Path:
    """A cluster that works; returns the path of its kubeconfig. Reuses, repairs or makes it."""
    borrowed = config.borrowed_kubeconfig()
    if borrowed is not None:
        return check_borrowed(borrowed)
    docker = engine.find()
    with proc.lock(config.cache() / "locks" / config.cluster_name()):
        image = node_image.ensure(docker)
        key = cluster_key(image)
        health = examine(docker, key)
        if health is Health.PAUSED:
            for name, state in containers(docker).items():
                if state == "paused":
                    docker("unpause", name)
            health = examine(docker, key)
        if health is Health.UNREADY and until_ready(image, docker, patience_s=60):
            health = Health.GOOD
        if health is not Health.GOOD:
            if health is not Health.ABSENT:
                proc.say(f"cluster {config.cluster_name()}: {health.value}; making it anew")
            remove(docker)
            create(docker, image, key)
    return config.kubeconfig()


def create(docker: Engine, image: node_image.NodeImage, key: str) -> None:
    name = config.cluster_name()
    proc.need_disk(Path("/var"), GIB, what="a three-node cluster")
    config.kubeconfig().parent.mkdir(parents=True, exist_ok=True)
    shared = shared_folder()
    shared.mkdir(parents=True, exist_ok=True)
    shared.chmod(0o1777)  # pods write as whoever they are
    if docker.name == "podman" and not Path("/lib/modules").exists():
        Path("/lib/modules").mkdir()  # kind mounts it, podman insists that it exists; kernels without modules lack it
    with proc.timed(f"cluster {name}: three nodes (about 60 s)"):
        try:
            kind(docker, "create", "cluster", "--name", name, "--image", image.name, "--config", "-",
                 "--kubeconfig", config.kubeconfig(), stdin=kind_config(image, key))  # fmt: skip
            config.kubeconfig().chmod(0o600)
            if not until_ready(image, docker, patience_s=READY_WITHIN_S):
                raise ClusterError(f"cluster {name} is not ready after {READY_WITHIN_S} s:\n{kubectl()('get', 'nodes,pods', '-A')}")
        except BaseException:
            remove(docker)
            raise


def delete() -> None:
    """Remove the cluster and all that came with it. A borrowed one stays as it is."""
    if config.borrowed_kubeconfig() is not None:
        proc.say("DTJ_TEST_KUBECONFIG names a cluster that is not ours: it is left alone")
        return
    docker = engine.find()
    with proc.lock(config.cache() / "locks" / config.cluster_name()):
        remove(docker)
