"""The image of the cluster's nodes: kind's own if it can be pulled, else one that we build.

Our image is built like kind's: Debian packages for the system (`rootfs`), kind's unit files and scripts
from its Go module, Kubernetes as `tools` builds it, and the control plane's images preloaded in containerd.
"""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import config, go, proc, rootfs, tools
from tests.cluster.engine import Engine

HERE = Path(__file__).parent
NODE = rootfs.Rootfs(folder=HERE / "node", suite="bookworm", seconds=40, gib=1)
KUBE_PROXY = rootfs.Rootfs(
    folder=HERE / "kube-proxy", suite="bookworm", variant="essential", seconds=20, gib=0.5
)
ON_THE_NODE = ("kubeadm", "kubectl", "kubelet")
IN_PODS = (
    "coredns",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "pause",
)
RECIPE = "1"  # increase it if a change to this module changes the image
GIB = 4  # the image, the archive of the control plane's images, and both once more while committing


@dataclass(frozen=True)
class NodeImage:
    """An image for kind, and whether it is kind's own, which includes a network plugin."""

    name: str
    stock: bool


def ensure(engine: Engine) -> NodeImage:
    """Choose the image of the nodes; pull or build it if the engine does not have it."""
    ours = f"localhost/dtj-node:{key()}"
    if engine.image_id(ours):
        return NodeImage(ours, stock=False)
    if engine.can_pull(config.STOCK_NODE_IMAGE):
        return NodeImage(config.STOCK_NODE_IMAGE, stock=True)
    proc.say("the node image cannot be pulled; building it here")
    with proc.lock(config.cache() / "locks" / "node-image"):
        if engine.image_id(ours) is None:
            build(engine, ours)
    return NodeImage(ours, stock=False)


def key() -> str:
    """Changes with everything that goes into our node image."""
    modules = sorted({tools.PROGRAMS[name].module for name in (*ON_THE_NODE, *IN_PODS, "kind")})
    return config.key(
        NODE.image,
        KUBE_PROXY.image,
        HERE / "node",
        RECIPE,
        *(go.module_key(module) for module in modules),
    )


def build(engine: Engine, image: str) -> None:
    # Check before the compiler runs for minutes, not after.
    proc.need_disk(Path("/var"), GIB, what="the node image")
    programs = tools.build(*ON_THE_NODE, *IN_PODS)
    bases = {rootfs_.folder.name: rootfs.ensure(engine, rootfs_) for rootfs_ in (NODE, KUBE_PROXY)}
    names = control_plane_images(programs["kubeadm"])
    with (
        proc.timed("node image (about 60 s, once)"),
        tempfile.TemporaryDirectory(prefix="dtj-node-") as scratch,
    ):
        bare = f"{image}-bare"
        build_node(engine, bare, bases["node"], programs, names["pause"], Path(scratch))
        archive = Path(scratch, "images.tar")
        for program, name in names.items():
            build_program_image(engine, name, programs[program], bases.get(program, "scratch"))
        engine("save", *multi(engine), "--output", archive, *names.values())
        preload(engine, bare, image, archive)
        engine("image", "rm", *names.values())
        engine("image", "rm", bare)


def build_node(
    engine: Engine, image: str, base: str, programs: Mapping[str, Path], pause: str, context: Path
) -> None:
    kind_files = go.module_folder("kind", "sigs.k8s.io/kind") / "images" / "base" / "files"
    shutil.copytree(kind_files, context / "files", copy_function=shutil.copy)
    shutil.copytree(HERE / "node" / "drop-in", context / "drop-in")
    (context / "bin").mkdir()
    for program in ON_THE_NODE:
        shutil.copy(programs[program], context / "bin")
    engine(
        "build", "--quiet", "--tag", image, "--file", HERE / "node" / "Dockerfile",
        "--build-arg", f"BASE_IMAGE={base}",
        "--build-arg", f"KUBERNETES_VERSION={config.kubernetes_version()}",
        "--build-arg", f"PAUSE_IMAGE={pause}",
        context,
    )  # fmt: skip


def build_program_image(engine: Engine, image: str, program: Path, base: str) -> None:
    """Build an image of one static program, at the path that the manifests of kubeadm use."""
    with tempfile.TemporaryDirectory(prefix="dtj-image-") as scratch:
        shutil.copy(program, scratch)
        dockerfile = Path(scratch, "Dockerfile")
        dockerfile.write_text(
            f"FROM {base}\n"
            f"COPY {program.name} /usr/local/bin/{program.name}\n"
            f'ENTRYPOINT ["/usr/local/bin/{program.name}"]\n'
        )
        engine("build", "--quiet", "--tag", image, "--file", dockerfile, scratch)


def control_plane_images(kubeadm: Path) -> dict[str, str]:
    """Program name -> the image name that this kubeadm's manifests use for it."""
    listed = proc.run(
        kubeadm, "config", "images", "list", "--kubernetes-version", config.kubernetes_version()
    )
    return {name.rpartition("/")[2].partition(":")[0]: name for name in listed.split()}


def preload(engine: Engine, bare: str, image: str, archive: Path) -> None:
    """Import the archive's images into the bare node image and commit it, so that nodes never pull."""
    script = (
        "containerd >/dev/null 2>&1 & "
        "until ctr version >/dev/null 2>&1; do sleep 0.1; done; "
        "ctr --namespace k8s.io images import --no-unpack /images.tar && kill $! && wait $!"
    )
    container = engine(
        "create", "--entrypoint", "/bin/sh", "--volume", f"{archive}:/images.tar:ro", bare, "-c", script
    ).strip()
    try:
        engine("start", "--attach", container)
        entrypoint = 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]'
        engine("commit", "--change", entrypoint, "--change", "CMD []", container, image)
    finally:
        engine("rm", "--force", container)


def multi(engine: Engine) -> list[str]:
    """Docker saves several images in one archive by default, podman only with this flag."""
    return ["--multi-image-archive"] if engine.name == "podman" else []
