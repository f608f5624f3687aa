"""A release in a registry, made in a thread while tests wait for nodes: it takes a minute."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import config, images
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
def in_background(files: Path) -> Iterator[Future[Release]]:
    """Start a registry and begin the release of our images; the registry ends with the block."""
    # Not in pytest's folder, which keeps the layers of three runs.
    with tempfile.TemporaryDirectory() as layers, serving(Path(layers), host="") as port:

        def make() -> Release:
            named = dict(zip(config.IMAGES, images.build().values(), strict=True))
            made = Release(files=files, port=port)
            release(f"{made.registry}/dtj", SOURCE, named, files, None, {})
            return made

        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(make)
