"""The images as the container engine has them."""

from __future__ import annotations

import uuid

import pytest

from tests.cluster import config, engine, images, rootfs


def test_operator_image_has_at_most_150_mb():
    if config.borrowed_kubeconfig() is not None:
        pytest.skip("the images are those of another cluster")
    runtime = engine.find()
    name = images.ensure(runtime, "operator")
    if name == images.candidates("operator")[0]:
        pytest.skip("the public base was pulled; the limit is for the base in images/base")
    assert int(runtime("image", "inspect", "--format", "{{.Size}}", name)) <= 150_000_000


@pytest.mark.timeout(300)  # it installs the packages from the index
def test_two_builds_of_the_operator_image_are_the_same_bytes():
    if config.borrowed_kubeconfig() is not None:
        pytest.skip("the images are those of another cluster")
    runtime = engine.find()
    if runtime.name != "podman":
        pytest.skip("Docker leaves the time of the build on the files")
    built = images.ensure(runtime, "operator")
    default = images.default_base(images.dockerfile("operator").read_text())
    on_public = built == images.candidates("operator")[0]
    base = default if on_public else rootfs.ensure(runtime, images.BASES["operator"])
    again = f"localhost/dtj-again:{uuid.uuid4().hex}"
    images.build_on(runtime, "operator", base, again, "--no-cache")
    try:
        assert runtime.image_id(again) == runtime.image_id(built)
    finally:
        runtime("image", "rm", again)
