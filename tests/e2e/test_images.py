"""The images as the container engine has them."""

from __future__ import annotations

import pytest

from tests.cluster import config, engine, images


def test_operator_image_has_at_most_150_mb():
    if config.borrowed_kubeconfig() is not None:
        pytest.skip("the images are those of another cluster")
    runtime = engine.find()
    name = images.ensure(runtime, "operator")
    if name == images.candidates("operator")[0]:
        pytest.skip("the public base was pulled; the limit is for the base in images/base")
    assert int(runtime("image", "inspect", "--format", "{{.Size}}", name)) <= 150_000_000
