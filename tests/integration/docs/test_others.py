"""The manifests of other projects in the pages, taken by an API server that has the CRDs of those projects.

Nothing of them is part of this project: DTJ_TEST_CRDS names a folder with one file of CRDs for each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import OTHER, Block, blocks, pages
from tests.integration import controlplane
from tests.support.kubectl import Kubectl

FOLDER = Path(os.environ.get("DTJ_TEST_CRDS") or os.devnull)  # never a folder
pytestmark = [
    pytest.mark.xdist_group("others"),
    pytest.mark.skipif(
        not FOLDER.is_dir(), reason="DTJ_TEST_CRDS is not set to a folder with the CRDs of other projects"
    ),
]
BLOCKS = [block for page in pages() for block in blocks(page) if block.marker == OTHER]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """Return kubectl for an API server that knows the kinds of other projects, and ours."""
    crds = [
        found["metadata"]["name"]
        for file in FOLDER.glob("*.yaml")
        for found in yaml.safe_load_all(file.read_text())
        if found is not None
    ]
    with controlplane.running(tmp_path_factory.mktemp("others")) as plane:
        controlplane.install_crd(plane)
        controlplane.install(plane, FOLDER, *crds)
        yield plane.kubectl


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_api_server_takes_the_manifests_of_others(taught: Kubectl, block: Block):
    taught("create", "--dry-run=server", "--validate=strict", "-f", "-", given=block.text)
    for manifest in yaml.safe_load_all(block.text):
        for component in manifest["spec"].get("components", ()):  # an AppWrapper takes any object in them
            job = yaml.safe_dump(component["template"])
            taught("create", "--dry-run=server", "--validate=strict", "-f", "-", given=job)
