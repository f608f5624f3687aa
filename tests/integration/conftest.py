"""One control plane for all tests of a process; every test has its own namespace in it."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import gang_releases, tools
from tests.cluster.errors import ClusterError
from tests.integration import controlplane
from tests.integration.controlplane import ControlPlane
from tests.integration.direct import NAMESPACES, Direct
from tests.integration.operator.process import warm
from tests.support import forked
from tests.support.kubectl import Kubectl

PROGRAMS = (*controlplane.PROGRAMS, "helm")
# The control plane collects garbage less often: the tests take a fifth less processor time, and more memory.
os.environ.setdefault("GOGC", "400")
LIMIT_S = 300  # default for a test; longer than any wait in a test, so that the error of the wait is shown


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_configure_node(node: Any) -> None:
    """Let the workers of pytest-xdist fork operators from one server, and it begin with its imports now."""
    node.workerinput["forkserver"] = forked.serve(warm())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the time limit of the tests in this folder, however they are selected."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build missing programs now: that takes minutes, and the time limit of a test includes its fixtures."""
    fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    needed = [
        *(PROGRAMS if "programs" in fixtures else ()),
        *(gang_releases.chosen().programs.values() if "gang_plane" in fixtures else ()),
        *(["crane"] if "released" in fixtures else ()),
    ]
    if needed and not session.config.option.collectonly:
        with contextlib.suppress(ClusterError):  # the tests that need them then fail with the reason
            tools.ensure(*needed)


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    """Return the programs that tests run, by their names."""
    return tools.ensure(*PROGRAMS)


@pytest.fixture(scope="session")
def plane(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return a control plane with our CRD."""
    with controlplane.running(tmp_path_factory.mktemp("controlplane")) as plane:
        controlplane.install_crd(plane)
        yield plane


@pytest.fixture(scope="module")
def direct(plane: ControlPlane) -> Direct:
    """Return the control plane without kubectl."""
    return Direct(plane)


@pytest.fixture
def namespace(direct: Direct, request: pytest.FixtureRequest) -> str:
    """Return a new namespace, named after the test."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_")).strip("-")[:40]
    name = f"{words.strip('-')}-{uuid.uuid4().hex[:6]}"
    direct.create(NAMESPACES, {"metadata": {"name": name}})
    return name


@pytest.fixture
def kubectl(plane: ControlPlane, namespace: str) -> Kubectl:
    """Return kubectl as admin, in the test's namespace."""
    return replace(plane.kubectl, namespace=namespace)
