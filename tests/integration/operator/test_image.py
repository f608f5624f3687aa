"""The operator runs with what its image keeps of the Kubernetes client."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import kubernetes

from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster
from tests.support.predicates import phase

DOCKERFILE = process.ROOT / "images/operator/Dockerfile"


def size(folder: Path) -> int:
    """Return the bytes of all modules in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*.py"))


def copy_as_in_the_image(folder: Path) -> None:
    """Copy the client, and remove what the Dockerfile removes."""
    installed, kept = Path(kubernetes.__file__).parent, folder / "kubernetes"
    shutil.copytree(installed, kept, ignore=shutil.ignore_patterns("__pycache__"))
    (removal,) = re.findall(r"find /opt/dtj -path .*/kubernetes/.* -delete", DOCKERFILE.read_text())
    subprocess.run(["sh", "-c", removal.replace("/opt/dtj", str(folder))], check=True)
    assert size(kept) < size(installed) / 10


async def test_operator_needs_no_generated_client(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, tmp_path: Path
):
    copy_as_in_the_image(tmp_path)
    paths = os.pathsep.join((str(tmp_path), str(process.ROOT / "operator/src")))
    async with process.kept(granted, watch=cluster.namespace, environment={"PYTHONPATH": paths}):
        await cluster.submit()
        await cluster.until(phase("Running"))
