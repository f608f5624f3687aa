"""A registry on this machine, empty at first: crane's own, which serves without TLS."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import tools
from tests.support.ports import free_port


@contextlib.contextmanager
def serving(folder: Path, *, host: str = "127.0.0.1") -> Iterator[int]:
    """Run a registry until the block ends; yield its port.

    folder  of its log and of the layers that are pushed to it
    host    the address of this machine that it listens on; "": all of them
    """
    crane, port = tools.ensure("crane")["crane"], free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [crane, "registry", "serve", f"--address={host}:{port}", f"--disk={folder}"],
            stdout=log,
            stderr=log,
        )
    try:
        until_answers(f"http://127.0.0.1:{port}/v2/", process)
        yield port
    finally:
        process.kill()
        process.wait()


def until_answers(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server accepts requests."""
    while process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=60).close()
        except urllib.error.URLError:  # it does not listen yet
            continue
        return
    raise AssertionError(f"it exited with {process.returncode}")
