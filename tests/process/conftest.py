"""One server for all workers of pytest-xdist, from which they fork commands."""

from typing import Any

import pytest

from tests.support import commands, forked


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_configure_node(node: Any) -> None:
    """Let it begin with its imports now, while the workers find their tests."""
    node.workerinput["forkserver"] = forked.serve(commands.warm())
