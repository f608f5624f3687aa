"""`make integration K8S=1.36` tests with the API server of that version."""

from __future__ import annotations

import json
import os

from tests.cluster import config, tools
from tests.integration.controlplane import ControlPlane


def test_api_server_has_the_requested_version(plane: ControlPlane):
    wanted = os.environ.get(tools.KUBERNETES) or config.kubernetes_version().removeprefix("v")
    assert f"{json.loads(plane.kubectl('get', '--raw', '/version'))['gitVersion']}.".startswith(f"v{wanted}.")
