"""One control plane for all tests of a process; every test has a namespace of its own in it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.integration import controlplane
from tests.integration.controlplane import ControlPlane
from tests.support.kubectl import Kubectl


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return a control plane that knows our CRD."""
    with controlplane.running(tmp_path_factory.mktemp("controlplane")) as plane:
        controlplane.install_crd(plane)
        yield plane


@pytest.fixture
def namespace(plane: ControlPlane, request: pytest.FixtureRequest) -> str:
    """Return a fresh namespace, named by the test."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_")).strip("-")[:40]
    name = f"{words.strip('-')}-{uuid.uuid4().hex[:6]}"
    plane.kubectl("create", "namespace", name)
    return name


@pytest.fixture
def kubectl(plane: ControlPlane, namespace: str) -> Kubectl:
    """Return kubectl as admin, in the test's namespace."""
    return replace(plane.kubectl, namespace=namespace)
