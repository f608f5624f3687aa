"""Loads locally built images into nodes; the control plane runs none of them.

The archive is written once, to the folder that all nodes mount, and they read it in parallel.
Sending it to each of them through `exec` took twice as long.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tests.cluster import config, kind, proc
from tests.cluster.engine import Engine
from tests.cluster.errors import ClusterError
from tests.cluster.kind import Cluster

LABEL = "dtj.dev/image-id"  # on a node's image: the id of its source in the engine's storage
GIB = 4  # per image: its archive and, on every node, contents and unpacked files


def load(cluster: Cluster, images: Mapping[str, str], *, spare: bool = False) -> None:
    """Load these images into the workers that lack them.

    images  name on the nodes -> name in the engine's storage
    spare   into the spare node too
    """
    if cluster.engine is None:
        proc.say("DTJ_TEST_KUBECONFIG is set: that cluster must be able to pull " + " and ".join(images))
        return
    nodes = (*cluster.workers, cluster.spare) if spare else cluster.workers
    for image, source in images.items():
        wanted = cluster.engine.image_id(source)
        if wanted is None:
            raise ClusterError(f"image {source} not found in {cluster.engine.name}", fix="make images")
        lacking = [node for node in nodes if id_on(cluster.engine, node, image) != wanted]
        if lacking:
            transfer(cluster.engine, image, source, lacking)


def transfer(engine: Engine, image: str, source: str, nodes: list[str]) -> None:
    folder = kind.shared_folder()
    proc.need_disk(folder, GIB, what=f"loading {image} into {len(nodes)} nodes")
    archive = f".{config.key(source)}.tar"
    with proc.timed(f"loading {image} into {len(nodes)} nodes (about 20 s per GB)"):
        try:
            engine("save", "--output", folder / archive, source)
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda node: import_archive(engine, node, archive, image, source), nodes))
        finally:
            (folder / archive).unlink(missing_ok=True)


def import_archive(engine: Engine, node: str, archive: str, image: str, source: str) -> None:
    ctr(engine, node, "import", f"{config.SHARED_FOLDER}/{archive}")
    if source != image:
        ctr(engine, node, "tag", "--force", source, image)
        ctr(engine, node, "rm", source)
    # Last, so that an interrupted import is repeated.
    ctr(engine, node, "label", image, f"{LABEL}={engine.image_id(source)}")


def id_on(engine: Engine, node: str, image: str) -> str | None:
    """The id of the image's source; None if the node has no such image, or one that we did not load."""
    return parse_label(ctr(engine, node, "list", f"name=={image}"))


def parse_label(listing: str) -> str | None:
    """Our label in what `ctr images list` prints: a table whose last column is key=value,key=value."""
    pairs = (pair.partition("=") for line in listing.splitlines() for pair in line.split()[-1].split(","))
    return next((value for key, _, value in pairs if key == LABEL), None)


def ctr(engine: Engine, node: str, *args: str) -> str:
    return engine("exec", node, "ctr", "--namespace=k8s.io", "images", *args)
