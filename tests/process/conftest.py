"""One server for all workers of pytest-xdist, from which they fork commands."""

from typing import Any

from tests.support import commands, forked


def pytest_configure_node(node: Any) -> None:
    """Let it begin with its imports now, while the workers find their tests."""
    node.workerinput["forkserver"] = forked.serve(commands.warm())
