"""Builds the project's two images and chooses their base images.

Their Dockerfiles name a public base image. If it cannot be pulled, an equivalent base is built from Debian
packages: images/base. An image is rebuilt only when its Dockerfile or a file that it copies has changed.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

from tests.cluster import config, engine, proc, rootfs
from tests.cluster.engine import Engine
from tests.cluster.errors import ClusterError
from tests.cluster.rootfs import Rootfs

BASES = {
    # Without apt, whose libraries the operator does not need.
    "operator": Rootfs(
        folder=config.ROOT / "images/base/operator", suite="bookworm", variant="essential", seconds=25, gib=1
    ),
    # Debian testing, because stable's torch is too old for us.
    "trainer": Rootfs(folder=config.ROOT / "images/base/trainer", suite="forky", seconds=80, gib=4),
}
SECONDS = 60
KEPT = 3  # builds of an image kept in the engine's storage, for several checkouts on one machine


def build() -> dict[str, str]:
    """Build the images that are out of date.

    Returns image name -> the engine's name for this checkout's build. The image name alone is not enough:
    another checkout on this machine may tag its own build with it at any time.
    """
    if config.borrowed_kubeconfig() is not None:
        proc.say("DTJ_TEST_KUBECONFIG is set: no images are built")
        return {image: image for image in config.IMAGES.values()}
    runtime = engine.find()
    return {image: ensure(runtime, role) for role, image in config.IMAGES.items()}


def image_id(role: str) -> str:
    """The id of the image that `build` built last. Unlike its tag, the id changes when the image does."""
    if config.borrowed_kubeconfig() is not None:
        return "borrowed"
    runtime = engine.find()
    for name in candidates(role):
        if found := runtime.image_id(name):
            return found
    raise ClusterError(
        f"no {role} image matches the current files: they changed during the build",
        fix="run the command again",
    )


def ensure(runtime: Engine, role: str) -> str:
    """Build one image unless a build of the current files exists; return the name of that build."""
    with proc.lock(config.cache() / "locks" / f"image-{role}"):
        name = next((name for name in candidates(role) if runtime.image_id(name)), None)
        if name is None:
            default = default_base(dockerfile(role).read_text())
            base = default if runtime.can_pull(default) else rootfs.ensure(runtime, BASES[role])
            name = build_name(role, base)
            build_on(runtime, role, base, name)
            forget_old_builds(runtime, name)
        for public in public_names(role, name):
            runtime("tag", name, public)
    return name


def build_on(runtime: Engine, role: str, base: str, name: str, *flags: str) -> None:
    """Build an image on a base; `flags` of the engine."""
    # The trainer's modules are compiled for the times of their files, so those must stay.
    timestamp = fixed_time(runtime) if role == "operator" else []
    runtime(
        "build", "--quiet", "--tag", name, "--file", dockerfile(role), *flags,
        *base_arguments(role, base), *network_arguments(), *timestamp, config.ROOT,
        step=f"image {config.IMAGES[role]} (about {SECONDS} s, once per change)",
        fix="see the output above; the build needs access to the Python package index",
    )  # fmt: skip


def public_names(role: str, name: str) -> list[str]:
    """Return the names that examples use for a build.

    A build on our base is the CPU trainer, a build on the public base the CUDA trainer. The CUDA build gets
    both names, because examples and tests use the name of the CPU trainer.
    """
    is_cuda = role == "trainer" and name == build_name(role, default_base(dockerfile(role).read_text()))
    return [config.IMAGES[role], *([config.CUDA_TRAINER] if is_cuda else [])]


def ensure_foreign(runtime: Engine, role: str, architecture: str) -> str:
    """Build an image for another architecture, such as "arm64", unless it exists; return its name.

    No program of that architecture runs.

    Raises ClusterError if its base is not available.
    """
    default = default_base(dockerfile(role).read_text())
    with proc.lock(config.cache() / "locks" / f"image-{role}-{architecture}"):
        own = replace(BASES[role], architecture=architecture)
        names = {base: build_name(role, base, architecture) for base in (default, own.image)}
        if built := next((name for name in names.values() if runtime.image_id(name)), None):
            return built
        base, builder = default, default
        if not runtime.can_pull(default):
            base, builder = rootfs.ensure(runtime, own), rootfs.ensure(runtime, BASES[role])
        runtime(
            "build", "--quiet", "--tag", names[base], "--file", dockerfile(role),
            f"--platform=linux/{architecture}", f"--build-arg=BASE_IMAGE={base}",
            f"--build-arg=BUILDER_IMAGE={builder}",
            # Podman does not set these two.
            f"--build-arg=BUILDPLATFORM=linux/{runtime.architecture}",
            f"--build-arg=TARGETPLATFORM=linux/{architecture}",
            *network_arguments(), *fixed_time(runtime), config.ROOT,
            step=f"image {config.IMAGES[role]} for {architecture} (about {SECONDS} s, once per change)",
            fix="see the output above; the build needs access to the Python package index",
        )  # fmt: skip
        forget_old_builds(runtime, names[base])
        return names[base]


def candidates(role: str) -> tuple[str, str]:
    """Names of up-to-date builds: on the public base, and on our base."""
    default = default_base(dockerfile(role).read_text())
    return build_name(role, default), build_name(role, BASES[role].image)


def build_name(role: str, base: str, architecture: str = "") -> str:
    """Changes with the base and with everything that goes into the image."""
    sources = [config.ROOT / path for path in copied(dockerfile(role).read_text())]
    suffix = architecture and f"-{architecture}"
    return f"localhost/dtj-{role}{suffix}:{config.key(base, dockerfile(role), *sources)}"


def forget_old_builds(runtime: Engine, newest: str) -> None:
    """Remove all but the newest KEPT builds of an image. A build that a container still uses stays."""
    repository = newest.rpartition(":")[0]
    # Both engines list the newest first.
    names = runtime("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", repository).split()
    for name in [each for each in names if each != newest][KEPT - 1 :]:
        runtime.works("image", "rm", name)


def base_arguments(role: str, base: str) -> list[str]:
    """Use the same base for both stages, because the virtual environment points at its interpreter."""
    stages = re.findall(r"^ARG ((?:BASE|BUILDER)_IMAGE)\b", dockerfile(role).read_text(), re.MULTILINE)
    return [f"--build-arg={stage}={base}" for stage in dict.fromkeys(stages)]


def fixed_time(runtime: Engine) -> list[str]:
    """Give an image and the files that a build adds a fixed time: two builds on one base have one digest.

    Docker gives it to the image only, not to the files.
    """
    return ["--timestamp=0"] if runtime.name == "podman" else ["--build-arg=SOURCE_DATE_EPOCH=0"]


def network_arguments() -> list[str]:
    """Use the machine's network, and its certificate bundle if SSL_CERT_FILE names one."""
    bundle = os.environ.get("SSL_CERT_FILE")
    secret = [f"--secret=id=ca,src={bundle}"] if bundle and Path(bundle).is_file() else []
    return ["--network=host", *secret]


def copied(text: str) -> list[str]:
    """Paths that a Dockerfile copies from the build context, not from another stage."""
    words = [
        line.split()[1:] for line in text.splitlines() if line.startswith("COPY ") and "--from=" not in line
    ]
    return [path for each in words for path in each[:-1] if not path.startswith("--")]


def default_base(text: str) -> str:
    """The public base image of a Dockerfile, used unless a build argument names another."""
    found = re.search(r"^ARG BASE_IMAGE=(\S+)", text, re.MULTILINE)
    if found is None:
        raise LookupError("the Dockerfile has no line `ARG BASE_IMAGE=<image>`")
    return found[1]


def dockerfile(role: str) -> Path:
    return config.ROOT / "images" / role / "Dockerfile"
