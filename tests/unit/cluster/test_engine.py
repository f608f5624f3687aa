"""The choice of the container engine, and the settings of podman on unusual machines."""

import pytest

from tests.cluster.engine import CAP_SYS_RESOURCE, choose, containers_conf, has_capability


@pytest.mark.parametrize(
    ("docker_works", "podman_works", "may_install", "chosen"),
    [
        pytest.param(True, True, True, "docker", id="docker is preferred"),
        pytest.param(False, True, False, "podman", id="podman if no docker daemon answers"),
        pytest.param(False, False, True, "podman", id="podman is installed if we may"),
        pytest.param(False, False, False, None, id="no engine and no rights to install one"),
    ],
)
def test_choice_of_the_engine(docker_works, podman_works, may_install, chosen):
    assert choose(docker_works=docker_works, podman_works=podman_works, may_install=may_install) == chosen


@pytest.mark.parametrize(
    ("given", "contained", "absent"),
    [
        pytest.param({}, 'runtime = "runc"', None, id="an old machine without privileges needs both"),
        pytest.param({"unified_cgroups": True}, "nofile=1024:1024", "runc", id="only limits on cgroup v2"),
        pytest.param(
            {"may_raise_limits": True}, 'runtime = "runc"', "nofile", id="only the runtime on cgroup v1"
        ),
    ],
)
def test_podman_gets_settings_for_what_the_machine_lacks(given, contained, absent):
    machine = {"root": True, "unified_cgroups": False, "may_raise_limits": False, "open_files": 1024} | given
    text = containers_conf(**machine)
    assert text is not None
    assert contained in text
    assert "pids_limit = 0" in text
    assert absent is None or absent not in text


@pytest.mark.parametrize("root", [True, False], ids=["as root", "as a user"])
def test_ordinary_machine_needs_no_settings(root):
    assert containers_conf(root=root, unified_cgroups=True, may_raise_limits=True, open_files=1024) is None


def test_capability_is_read_from_the_effective_set():
    status = "CapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n"
    assert not has_capability(status, CAP_SYS_RESOURCE)
    assert has_capability(status, 21)
