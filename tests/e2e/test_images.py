"""The images as the container engine has them."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from tests.cluster import config, engine, images

pytestmark = pytest.mark.exclusive  # the second build is made while the others wait for pods


def test_operator_image_has_at_most_150_mb():
    if config.borrowed_kubeconfig() is not None:
        pytest.skip("the images are those of another cluster")
    runtime = engine.find()
    name = images.ensure(runtime, "operator")
    if name == images.candidates("operator")[0]:
        pytest.skip("the public base was pulled; the limit is for the base in images/base")
    assert int(runtime("image", "inspect", "--format", "{{.Size}}", name)) <= 150_000_000


@pytest.mark.timeout(1800)  # the release is made first, and the packages come from the index
def test_two_builds_of_the_operator_image_are_the_same_bytes(rebuilt: Future[str] | None):
    if rebuilt is None:
        pytest.skip("the images are those of another cluster, or of Docker, which leaves the time of a build")
    runtime = engine.find()
    assert rebuilt.result() == runtime.image_id(images.ensure(runtime, "operator"))
