"""The Dockerfiles pass hadolint."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


DOCKERFILES = sorted((ROOT / "images").rglob("Dockerfile*"))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_dockerfile_is_clean(dockerfile: Path):
    done = subprocess.run(
        ["hadolint", "--no-color", str(dockerfile)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
