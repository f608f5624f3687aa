"""The files of a release: wheels of the distributions, and the checksums of everything."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from tests.cluster import config, proc
from tests.cluster.errors import ClusterError


def build_wheels(folder: Path, registry: str) -> list[Path]:
    """Build a wheel of each distribution with the locked build tools; return their paths.

    registry   registry and path of the trainer's images, as the default of the client
    """
    uv = Path(sys.executable).with_name("uv")
    with tempfile.TemporaryDirectory() as temporary:
        client = Path(temporary, "client")
        shutil.copytree(config.ROOT / "client", client, ignore=shutil.ignore_patterns("__pycache__"))
        name_images(client / "src/dtj_client/submission/manifest.py", registry)
        for source in (config.ROOT / "operator", config.ROOT / "trainer", client):
            proc.run(
                uv, "build", "--quiet", "--wheel", f"--out-dir={folder}", "--require-hashes",
                f"--build-constraints={config.ROOT}/images/trainer/build-requirements.txt", source,
                env={"UV_CACHE_DIR": str(config.cache() / "uv")},
                fix="the build needs access to the Python package index",
            )  # fmt: skip
    (folder / ".gitignore").unlink(missing_ok=True)  # uv's own
    return sorted(folder.glob("*.whl"))


def name_images(module: Path, registry: str) -> None:
    """Replace the public registry in a module of the client; raises ClusterError if it is not there."""
    public, text = f'"{config.CUDA_TRAINER.rpartition("/")[0]}/', module.read_text()
    if public not in text:
        raise ClusterError(f"{module} names no image of {public}", fix="correct name_images in tests/release")
    module.write_text(text.replace(public, f'"{registry}/'))


def write_checksums(folder: Path) -> Path:
    """Write the SHA-256 of all files of a folder, in the format that `sha256sum --check` reads."""
    path = folder / "SHA256SUMS"
    files = sorted(each for each in folder.iterdir() if each.is_file() and each != path)
    path.write_text(
        "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    )
    return path
