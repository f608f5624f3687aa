"""The Python environment of requirements/release.txt: what only a release and an audit need."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.cluster import config, proc

LOCK = config.ROOT / "requirements/release.txt"


def python() -> Path:
    """Return its interpreter; it is created if the cache does not have it."""
    folder = config.cache() / f"release-{config.key(LOCK, sys.version)}"
    uv = Path(sys.executable).with_name("uv")
    with proc.lock(config.cache() / "locks" / "release"):
        if not folder.exists():
            scratch = folder.with_suffix(".partial")
            shutil.rmtree(scratch, ignore_errors=True)
            cached = {"UV_CACHE_DIR": str(config.cache() / "uv")}
            fix = "the installation needs access to the Python package index"
            proc.run(uv, "venv", "--quiet", "--python", sys.executable, scratch, env=cached)
            proc.run(
                uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", scratch,
                "--require-hashes", "-r", LOCK, env=cached, fix=fix,
            )  # fmt: skip
            scratch.rename(folder)
    return folder / "bin/python"
