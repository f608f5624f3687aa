"""The pods of every manifest in the pages are valid pods: the CRD keeps unknown pod fields, this does not."""

from __future__ import annotations

from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from dtj_operator.model import spec
from dtj_operator.plan.children.env import PodContext
from dtj_operator.plan.children.pod import pod_maker
from tests.docs.blocks import all_blocks

MANIFESTS = [
    pytest.param(manifest, id=f"{block.place} {manifest['kind']}")
    for block in all_blocks("yaml")
    for manifest in yaml.safe_load_all(block.text)
]


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifest_is_valid(manifest: dict[str, Any]):
    if manifest["kind"] == "DistributedTrainingJob":
        manifest["metadata"] |= {"namespace": "default", "uid": "00000000-0000-0000-0000-000000000000"}
        job = spec.parse(manifest)
        assert job.error is None
        manifest = pod_maker(job, PodContext(attempt=0, size=job.replicas, restarts_left=10))(0)

    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
