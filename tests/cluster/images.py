"""Builds the project's two images, and decides what they stand on.

Their Dockerfiles name a public base image. Where no registry has it, a base of ours with the same
promises is made from Debian packages: images/base. An image is built again only when something that its
Dockerfile copies has changed.
"""

import os
import re
from pathlib import Path

from tests.cluster import config, engine, proc, rootfs
from tests.cluster.engine import Engine
from tests.cluster.rootfs import Rootfs

BASES = {
    "operator": Rootfs(folder=config.ROOT / "images/base/operator", suite="bookworm", seconds=25, gib=1),
    # Testing, because stable's torch is too old for us.
    "trainer": Rootfs(folder=config.ROOT / "images/base/trainer", suite="forky", seconds=80, gib=4),
}
LABEL = "dev.dtj.inputs"
SECONDS = 60


def build() -> list[str]:
    """Build what is out of date; returns the names of both images."""
    if config.borrowed_kubeconfig() is not None:
        proc.say("the cluster is borrowed: no images are built")
    else:
        runtime = engine.find()
        for role in config.IMAGES:
            with proc.lock(config.cache() / "locks" / f"image-{role}"):
                ensure(runtime, role)
    return list(config.IMAGES.values())


def image_id(role: str) -> str:
    """The id of a built image: changes when the image does, although its tag does not."""
    if config.borrowed_kubeconfig() is not None:
        return "borrowed"
    return engine.find().image_id(config.IMAGES[role]) or "absent"


def ensure(runtime: Engine, role: str) -> None:
    """Build one image unless it was built from what is there now."""
    default, ours = default_base(dockerfile(role).read_text()), BASES[role].image
    built_from = label(runtime, config.IMAGES[role])
    if built_from in {inputs(role, default), inputs(role, ours)}:
        return
    outdated = runtime.image_id(config.IMAGES[role])
    base = default if runtime.can_pull(default) else rootfs.ensure(runtime, BASES[role])
    runtime(
        "build", "--quiet", "--tag", config.IMAGES[role], "--file", dockerfile(role),
        "--label", f"{LABEL}={inputs(role, base)}",
        *base_arguments(role, base), *network_arguments(), config.ROOT,
        step=f"image {config.IMAGES[role]} (about {SECONDS} s, once per change)",
        fix="see the output above; the build needs the Python package index",
    )  # fmt: skip
    if outdated is not None:
        runtime.works(
            "image", "rm", outdated
        )  # it has lost its tag; where a container still runs it, it stays


def base_arguments(role: str, base: str) -> list[str]:
    """Both stages on the same base: the virtual environment points at its interpreter."""
    stages = re.findall(r"^ARG ((?:BASE|BUILDER)_IMAGE)\b", dockerfile(role).read_text(), re.MULTILINE)
    return [f"--build-arg={stage}={base}" for stage in dict.fromkeys(stages)]


def network_arguments() -> list[str]:
    """The machine's own way out, and the certificates that it trusts where those are not everybody's."""
    bundle = os.environ.get("SSL_CERT_FILE")
    secret = [f"--secret=id=ca,src={bundle}"] if bundle and Path(bundle).is_file() else []
    return ["--network=host", *secret]


def inputs(role: str, base: str) -> str:
    """Changes with the base and with everything that goes into the image."""
    sources = [config.ROOT / path for path in copied(dockerfile(role).read_text())]
    return config.key(base, dockerfile(role), *sources)


def copied(text: str) -> list[str]:
    """Paths that a Dockerfile copies out of the build context, not out of another stage."""
    words = [
        line.split()[1:] for line in text.splitlines() if line.startswith("COPY ") and "--from=" not in line
    ]
    return [path for each in words for path in each[:-1] if not path.startswith("--")]


def default_base(text: str) -> str:
    """The public image that a Dockerfile stands on unless told otherwise."""
    found = re.search(r"^ARG BASE_IMAGE=(\S+)", text, re.MULTILINE)
    if found is None:
        raise LookupError("the Dockerfile has no line `ARG BASE_IMAGE=<image>`")
    return found[1]


def label(runtime: Engine, image: str) -> str | None:
    """What an image says it was built from."""
    if runtime.image_id(image) is None:
        return None
    return runtime("image", "inspect", "--format", f'{{{{index .Config.Labels "{LABEL}"}}}}', image).strip()


def dockerfile(role: str) -> Path:
    return config.ROOT / "images" / role / "Dockerfile"
