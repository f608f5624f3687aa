"""Brings images that were built here into the worker nodes; the control plane runs none of ours.

An archive is written once, into the folder that all nodes see, and read by all workers at the same time.
Sending it through `exec` to each of them took twice as long.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tests.cluster import config, kind, proc
from tests.cluster.engine import Engine
from tests.cluster.errors import ClusterError
from tests.cluster.kind import Cluster

LABEL = "dtj.dev/image-id"  # put on a node's image: the id in the engine's storage that it was made from
GIB = 3  # per image: its archive and, in every worker, contents and unpacked files


def load(cluster: Cluster, images: Mapping[str, str]) -> None:
    """See that all workers have these images.

    images  name that the nodes know it by -> name in the engine's storage
    """
    if cluster.engine is None:
        proc.say("the cluster is borrowed: it must be able to pull " + " and ".join(images))
        return
    for image, source in images.items():
        wanted = cluster.engine.image_id(source)
        if wanted is None:
            raise ClusterError(f"there is no image {source}", fix="make images")
        lacking = [node for node in cluster.workers if id_on(cluster.engine, node, image) != wanted]
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
    # Last, so that an import that was cut short is repeated.
    ctr(engine, node, "label", image, f"{LABEL}={engine.image_id(source)}")


def id_on(engine: Engine, node: str, image: str) -> str | None:
    """The id that an image on a node was made from; None where the node has none, or not from us."""
    return parse_label(ctr(engine, node, "list", f"name=={image}"))


def parse_label(listing: str) -> str | None:
    """Our label in what `ctr images list` prints: a table whose last column is key=value,key=value."""
    pairs = (pair.partition("=") for line in listing.splitlines() for pair in line.split()[-1].split(","))
    return next((value for key, _, value in pairs if key == LABEL), None)


def ctr(engine: Engine, node: str, *args: str) -> str:
    return engine("exec", node, "ctr", "--namespace=k8s.io", "images", *args)
