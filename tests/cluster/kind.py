"""Creates, reuses, repairs, recreates and removes the four-node cluster."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import cni, config, control_plane, engine, gang_releases, node_image, proc, tools
from tests.cluster.engine import Engine
from tests.cluster.errors import ClusterError
from tests.cluster.health import Health, Observed, judge
from tests.support.kubectl import Json, Kubectl
from tests.support.ports import published_port

KEY_LABEL = "dtj.dev/cluster-key"  # on every node: a hash of what the cluster was created from
GIB = 8  # four nodes with their unpacked images, before any of ours
READY_WITHIN_S = 300.0
PATIENCE_S = 60.0  # for nodes that were just unpaused or restarted
HANGS_S = 120.0  # without an answer for this long, a node or API server is dead; a busy machine is slow


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster to work on.

    engine  what runs its nodes; None if the cluster is borrowed, so that we must not change its nodes
    """

    name: str
    kubeconfig: Path
    engine: Engine | None
    pod_network: bool = False  # whether we set up the pod network

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes by kind's names: the control plane, the workers, the spare one."""
        more = (f"{self.name}-worker{number}" for number in range(2, config.WORKERS + 2))
        return (f"{self.name}-control-plane", f"{self.name}-worker", *more)

    @property
    def workers(self) -> tuple[str, ...]:
        """The nodes that run any pods."""
        return self.nodes[1:-1]

    @property
    def spare(self) -> str:
        """A node that runs only pods that tolerate its taint: a test may break it while other tests run."""
        return self.nodes[-1]

    @property
    def runtime(self) -> Engine:
        """The engine that runs the nodes; raises ClusterError if the cluster is borrowed."""
        if self.engine is None:
            raise ClusterError(
                f"cannot change nodes: the cluster of DTJ_TEST_KUBECONFIG={self.kubeconfig} is not ours",
                fix="unset DTJ_TEST_KUBECONFIG to create a cluster of our own",
            )
        return self.engine

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(binary=tools.ensure("kubectl")["kubectl"], kubeconfig=self.kubeconfig)


def create() -> Cluster:
    """Return a working cluster: the existing one, or a new one."""
    borrowed = config.borrowed_kubeconfig()
    if borrowed is not None:
        return borrow(borrowed)
    runtime = engine.find()
    with proc.lock(lock_file()):
        image = node_image.ensure(runtime)
        cluster = ours(runtime, image)
        health = repair(cluster, examine(cluster, key(cluster, image)), key(cluster, image))
        if health is not Health.GOOD:
            if health is not Health.ABSENT:
                proc.say(f"cluster {cluster.name}: {health.value}; recreating it")
            remove(cluster)
            make(cluster, image)
    return cluster


def delete() -> None:
    """Remove the cluster and everything created with it. A borrowed cluster is not changed."""
    if config.borrowed_kubeconfig() is not None:
        proc.say("DTJ_TEST_KUBECONFIG is set: that cluster is not ours, nothing is removed")
        return
    if not engine.is_there():
        proc.say("no container engine found, so there is no cluster to remove")
        return
    with proc.lock(lock_file()):
        remove(ours(engine.find(), None))


def borrow(kubeconfig: Path) -> Cluster:
    cluster = Cluster(name="borrowed", kubeconfig=kubeconfig, engine=None)
    if not answers(cluster.kubectl):
        raise ClusterError(
            f"the cluster of DTJ_TEST_KUBECONFIG={kubeconfig} does not answer",
            fix="check it with kubectl, or unset the variable to create a cluster",
        )
    return cluster


def of_checkout() -> Cluster:
    """Return the cluster that `create` has made, whatever its state."""
    borrowed = config.borrowed_kubeconfig()
    if borrowed is not None:
        return borrow(borrowed)
    runtime = engine.find()
    return ours(runtime, node_image.ensure(runtime))


def ours(runtime: Engine, image: node_image.NodeImage | None) -> Cluster:
    network = image is not None and not image.stock
    name = config.cluster_name()
    return Cluster(name=name, kubeconfig=config.kubeconfig(), engine=runtime, pod_network=network)


def examine(cluster: Cluster, wanted: str) -> Health:
    """Find the state of a cluster; query the API server only if all nodes answer."""
    expected = frozenset(cluster.nodes)
    containers = node_states(cluster)
    running = [name for name, state in containers.items() if state == "running"]
    answering = frozenset(
        name for name in running if cluster.runtime.works("exec", name, "true", within_s=HANGS_S)
    )
    seen = Observed(containers=containers, answering=answering)
    if expected <= answering:
        ready, made_of = ready_nodes(cluster)
        seen = Observed(containers=containers, answering=answering, ready=ready, key=made_of)
    return judge(seen, expected=expected, key=wanted)


def repair(cluster: Cluster, health: Health, wanted: str) -> Health:
    """Do what is possible without a new cluster: unpause nodes, wait for nodes to become ready."""
    if health is Health.PAUSED:
        for name, state in node_states(cluster).items():
            if state == "paused":
                cluster.runtime("unpause", name)
        health = examine(cluster, wanted)
    if health is Health.UNREADY:
        proc.say(f"cluster {cluster.name}: waiting up to {PATIENCE_S:.0f} s for its nodes to become ready")
        settle(cluster, within_s=PATIENCE_S)
        health = examine(cluster, wanted)
    return health


def node_states(cluster: Cluster) -> dict[str, str]:
    """Container name -> state, for all containers that kind created for the cluster."""
    label = f"label=io.x-k8s.kind.cluster={cluster.name}"
    ids = cluster.runtime("ps", "--all", "--quiet", "--filter", label).split()
    if not ids:
        return {}
    # Not the column of `ps`: docker and podman print different words there.
    listed = cluster.runtime("inspect", "--format", "{{.Name}} {{.State.Status}}", *ids)
    pairs = (line.split() for line in listed.splitlines())
    return {name.removeprefix("/"): state for name, state in pairs}


def ready_nodes(cluster: Cluster) -> tuple[frozenset[str], str | None]:
    """Names of the ready nodes and the cluster key; none and None if the API server does not answer."""
    if not cluster.kubeconfig.exists():  # `make clean` removes the checkout's build folder
        kind(cluster, "export", "kubeconfig", "--name", cluster.name, "--kubeconfig", cluster.kubeconfig)
    if not answers(cluster.kubectl):
        return frozenset(), None
    nodes = own_nodes(cluster)
    ready = {
        node["metadata"]["name"]
        for node in nodes
        if any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])
    }
    keys = {node["metadata"]["labels"].get(KEY_LABEL, "none") for node in nodes}
    return frozenset(ready), ",".join(sorted(keys))


def own_nodes(cluster: Cluster) -> list[Json]:
    """The nodes as the API server knows them, without the simulated nodes of a benchmark."""
    return [node for node in cluster.kubectl.list("nodes") if node["metadata"]["name"] in cluster.nodes]


def answers(kubectl: Kubectl) -> bool:
    asked = kubectl.command("get", "--raw", "/readyz", f"--request-timeout={HANGS_S:.0f}s")
    return proc.works(*asked, within_s=HANGS_S + 10)


def make(cluster: Cluster, image: node_image.NodeImage) -> None:
    """Create the cluster and wait until it can run pods."""
    proc.need_disk(Path("/var"), GIB, what="a cluster of four nodes")
    cluster.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
    shared_folder().mkdir(parents=True, exist_ok=True)
    shared_folder().chmod(0o1777)  # pods write under any user id
    if not Path("/lib/modules").exists():
        Path("/lib/modules").mkdir()  # kind mounts it; a kernel without modules has no such folder
    with proc.timed(f"cluster {cluster.name}: four nodes (about 60 s)"):
        settings = kind_config(cluster, key(cluster, image), port=published_port())
        try:
            kind(
                cluster, "create", "cluster", "--name", cluster.name, "--image", image.name, "--config", "-",
                "--kubeconfig", cluster.kubeconfig, stdin=settings,
            )  # fmt: skip
            if not settle(cluster, within_s=READY_WITHIN_S):
                state = cluster.kubectl("get", "nodes,pods", "--all-namespaces", check=False)
                raise ClusterError(
                    f"cluster {cluster.name} is not ready after {READY_WITHIN_S:.0f} s:\n{state}"
                )
            if release := gang_releases.of_cluster():
                control_plane.replace(cluster.runtime, cluster.nodes[0], cluster.kubectl, release)
        except BaseException:
            remove(cluster)
            raise


def settle(cluster: Cluster, *, within_s: float) -> bool:
    """Set up the pod network if it is ours, then wait for nodes and DNS; return whether they are ready."""
    if cluster.engine and cluster.pod_network:
        cni.configure(cluster.engine, own_nodes(cluster))
    patience = f"--timeout={within_s:.0f}s"
    nodes = cluster.kubectl.command("wait", "node", *cluster.nodes, "--for=condition=Ready", patience)
    dns = cluster.kubectl.command(
        "--namespace=kube-system", "rollout", "status", "deployment/coredns", patience
    )
    return all(proc.works(*command, within_s=within_s + 10) for command in (nodes, dns))


def remove(cluster: Cluster) -> None:
    """Remove nodes, their volumes and network, the kubeconfig and the shared folder, if they exist."""
    left = node_states(cluster)
    if left:
        with proc.timed(f"removing cluster {cluster.name}"):
            for name, state in left.items():
                if state == "paused":
                    cluster.runtime("unpause", name)
            at_once = ["--time=0"] if cluster.runtime.name == "podman" else []  # docker does not wait anyway
            remove_containers = ("rm", "--force", *at_once, "--volumes", *left)
            # If another program killed a container's processes, podman's first attempt fails.
            if not cluster.runtime.works(*remove_containers, within_s=60):
                cluster.runtime(*remove_containers)
    if cluster.runtime.works("network", "inspect", cluster.name):
        cluster.runtime("network", "rm", cluster.name)
    # With podman, kind creates named volumes, which outlive the nodes; each is a gigabyte.
    for name in cluster.nodes:
        if volumes := cluster.runtime("volume", "ls", "--quiet", "--filter", f"label={name}").split():
            cluster.runtime("volume", "rm", "--force", *volumes)
    cluster.kubeconfig.unlink(missing_ok=True)
    shutil.rmtree(shared_folder(), ignore_errors=True)


def kind(cluster: Cluster, *args: str | Path, stdin: str | None = None) -> str:
    """Run kind with our engine and a network of the cluster's own, removed with the cluster."""
    network = {f"KIND_EXPERIMENTAL_{name}_NETWORK": cluster.name for name in ("DOCKER", "PODMAN")}
    return proc.run(tools.build("kind")["kind"], *args, stdin=stdin, env={**cluster.runtime.env, **network})


def kind_config(cluster: Cluster, made_of: str, *, port: int) -> str:
    """The configuration for kind, in JSON, because that is YAML too; `port` is the API server's here."""
    mount = {"hostPath": str(shared_folder()), "containerPath": config.SHARED_FOLDER}
    labels = {KEY_LABEL: made_of}
    node = {"extraMounts": [mount], "labels": labels}
    # Otherwise a kubelet of 1.35 refuses to start on cgroup v1.
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
    }
    # It must survive the end of its process, not that of this machine, whose disk may be slow to flush.
    etcd = {"kind": "ClusterConfiguration", "etcd": {"local": {"extraArgs": {"unsafe-no-fsync": "true"}}}}
    taint = {
        "kind": "JoinConfiguration",
        "nodeRegistration": {"taints": [{"key": config.SPARE, "effect": "NoSchedule"}]},
    }
    spare = {"labels": {**labels, config.SPARE: ""}, "kubeadmConfigPatches": [json.dumps(taint)]}
    return json.dumps(
        {
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "kind": "Cluster",
            "networking": {
                "disableDefaultCNI": cluster.pod_network,
                "podSubnet": config.POD_NETWORK,
                "apiServerPort": port,
            },
            "kubeadmConfigPatches": [json.dumps(kubelet), json.dumps(etcd)],
            "nodes": [
                {"role": "control-plane", **node},
                *([{"role": "worker", **node}] * config.WORKERS),
                {"role": "worker", **node, **spare},
            ],
        }
    )


def key(cluster: Cluster, image: node_image.NodeImage) -> str:
    """Changes with everything that makes an existing cluster differ from a new one."""
    settings = () if cluster.engine is None else sorted(cluster.engine.env.values())
    newer = gang_releases.of_cluster()
    programs = (newer.version, Path(control_plane.__file__)) if newer else ()
    return config.key(image.name, kind_config(cluster, "", port=0), Path(cni.__file__), *settings, *programs)


def shared_folder() -> Path:
    """The folder on this machine that is mounted in every node at config.SHARED_FOLDER."""
    return config.kubeconfig().parent / "shared"


def lock_file() -> Path:
    return config.cache() / "locks" / config.cluster_name()
