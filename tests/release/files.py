"""The files of a release: wheels of the distributions, and the checksums of everything."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from tests.cluster import config, proc

DISTRIBUTIONS = ("operator", "trainer", "client")


def build_wheels(folder: Path) -> list[Path]:
    """Build a wheel of each distribution with the locked build tools; return their paths."""
    uv = Path(sys.executable).with_name("uv")
    for name in DISTRIBUTIONS:
        proc.run(
            uv, "build", "--quiet", "--wheel", f"--out-dir={folder}", "--require-hashes",
            f"--build-constraints={config.ROOT}/images/trainer/build-requirements.txt", config.ROOT / name,
            env={"UV_CACHE_DIR": str(config.cache() / "uv")},
            fix="the build needs access to the Python package index",
        )  # fmt: skip
    (folder / ".gitignore").unlink(missing_ok=True)  # uv's own
    return sorted(folder.glob("*.whl"))


def write_checksums(folder: Path) -> Path:
    """Write the SHA-256 of all files of a folder, in the format that `sha256sum --check` reads."""
    path = folder / "SHA256SUMS"
    files = sorted(each for each in folder.iterdir() if each.is_file() and each != path)
    path.write_text(
        "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    )
    return path
