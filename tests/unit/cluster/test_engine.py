"""Which engine is taken, and what podman is told on which machine."""

import pytest

from tests.cluster.engine import CAP_SYS_RESOURCE, choose, containers_conf, has_capability


@pytest.mark.parametrize(
    ("docker_works", "podman_works", "may_install", "chosen"),
    [
        pytest.param(True, True, True, "docker", id="docker comes first"),
        pytest.param(False, True, False, "podman", id="podman where no daemon answers"),
        pytest.param(False, False, True, "podman", id="podman is installed where we may"),
        pytest.param(False, False, False, None, id="without engine and without root there is no way"),
    ],
)
def test_choice_of_the_engine(docker_works, podman_works, may_install, chosen):
    assert choose(docker_works=docker_works, podman_works=podman_works, may_install=may_install) == chosen


@pytest.mark.parametrize(
    ("given", "contained", "absent"),
    [
        pytest.param({}, 'runtime = "runc"', None, id="an old machine without privileges needs both"),
        pytest.param({"unified_cgroups": True}, "nofile=1024:1024", "runc", id="limits alone on cgroup v2"),
        pytest.param(
            {"may_raise_limits": True}, 'runtime = "runc"', "nofile", id="runtime alone on cgroup v1"
        ),
    ],
)
def test_podman_is_told_what_the_machine_lacks(given, contained, absent):
    machine = {"root": True, "unified_cgroups": False, "may_raise_limits": False, "open_files": 1024} | given
    text = containers_conf(**machine)
    assert text is not None
    assert contained in text
    assert absent is None or absent not in text


@pytest.mark.parametrize("root", [True, False], ids=["as root", "as a user"])
def test_settings_of_an_ordinary_machine_are_left_alone(root):
    assert containers_conf(root=root, unified_cgroups=True, may_raise_limits=True, open_files=1024) is None


def test_capability_is_read_from_the_effective_set():
    status = "CapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n"
    assert not has_capability(status, CAP_SYS_RESOURCE)
    assert has_capability(status, 21)
