"""Which control plane the test cluster gets."""

import pytest

from tests.cluster import config, gang_releases, tools
from tests.cluster.errors import ClusterError

USUAL = ".".join(config.kubernetes_version().removeprefix("v").split(".")[:2])


@pytest.mark.parametrize("version", ["", USUAL])
def test_cluster_keeps_the_control_plane_of_its_node_image(monkeypatch: pytest.MonkeyPatch, version: str):
    monkeypatch.setenv(tools.KUBERNETES, version)
    assert gang_releases.of_cluster() is None


def test_cluster_gets_a_release_that_places_gangs(monkeypatch: pytest.MonkeyPatch):
    for release in gang_releases.RELEASES:
        monkeypatch.setenv(tools.KUBERNETES, release.version)
        assert gang_releases.of_cluster() is release


def test_version_that_the_cluster_cannot_have_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Else its tests would run with the usual version without a word about it."""
    monkeypatch.setenv(tools.KUBERNETES, "1.34")
    with pytest.raises(ClusterError, match=r"control plane of Kubernetes 1.34\n.*use one of 1.36, 1.37"):
        gang_releases.of_cluster()
