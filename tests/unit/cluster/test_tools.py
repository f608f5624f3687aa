"""Which version of a program tests get."""

import pytest

from tests.cluster import config, tools
from tests.cluster.errors import ClusterError

USUAL = ".".join(config.kubernetes_version().removeprefix("v").split(".")[:2])


@pytest.mark.parametrize(
    ("name", "version", "program"),
    [
        ("kube-apiserver", "1.34", "kube-apiserver-1.34"),
        ("kube-apiserver", "1.36", "kube-apiserver-1.36"),
        ("kube-apiserver", "1.37", "kube-apiserver-1.37"),
        pytest.param("kube-apiserver", USUAL, "kube-apiserver", id="the usual version"),
        pytest.param("kubectl", "1.36", "kubectl", id="the version is that of the API server alone"),
    ],
)
def test_api_server_of_a_version(name: str, version: str, program: str):
    assert tools.of_version(name, version) == program


def test_version_of_every_api_server_is_that_of_its_lock_file():
    for name, program in tools.PROGRAMS.items():
        if name.startswith("kube-apiserver-"):
            locked = config.version_of(program.module, "k8s.io/kubernetes")
            assert locked.startswith(f"v{name.removeprefix('kube-apiserver-')}.")


def test_unknown_version_names_those_that_exist(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(tools.KUBERNETES, "1.20")
    with pytest.raises(ClusterError, match=f"no API server of Kubernetes 1.20\n.*1.34, {USUAL}, 1.36, 1.37"):
        tools.ensure("kube-apiserver")
