"""A release in a registry and another build of an image, made in a thread while tests wait for nodes."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import config, engine, images, rootfs
from tests.release.__main__ import Source, release
from tests.support.registry import serving

SOURCE = Source(commit="0123456789abcdef0123456789abcdef01234567", date="2026-01-02T03:04:05Z")


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release whose images and chart are in a registry of this machine.

    files  the folder of its files
    port   of the registry, which listens on all addresses; its name in references is 127.0.0.1
    """

    files: Path
    port: int

    @property
    def registry(self) -> str:
        """Host and port, as in references: containerd uses TLS unless the host is a loopback address."""
        return f"127.0.0.1:{self.port}"


@contextlib.contextmanager
def begun(background: Executor, files: Path) -> Iterator[Future[Release]]:
    """Start a registry and begin the release of our images; both end with the block."""
    # Not in pytest's folder, which keeps the layers of three runs.
    with tempfile.TemporaryDirectory() as layers, serving(Path(layers), host="") as port:

        def make() -> Release:
            named = dict(zip(config.IMAGES, images.build().values(), strict=True))
            made = Release(files=files, port=port)
            release(f"{made.registry}/dtj", SOURCE, named, files, None, {})
            return made

        future = background.submit(make)
        try:
            yield future
        finally:
            wait([future])


def can_build_again() -> bool:
    """Whether two builds of ours can be compared: Docker leaves the time of the build on the files."""
    return config.borrowed_kubeconfig() is None and engine.find().name == "podman"


def built_again() -> str:
    """Build the operator's image without layers of an earlier build, and return its id."""
    runtime = engine.find()
    on_public = images.ensure(runtime, "operator") == images.candidates("operator")[0]
    default = images.default_base(images.dockerfile("operator").read_text())
    base = default if on_public else rootfs.ensure(runtime, images.BASES["operator"])
    again = f"localhost/dtj-again:{uuid.uuid4().hex}"
    images.build_on(runtime, "operator", base, again, "--no-cache")
    try:
        return str(runtime.image_id(again))
    finally:
        runtime("image", "rm", again)
