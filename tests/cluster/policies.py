"""Enforces the NetworkPolicies of a namespace for a while. The network of our own node image enforces none.

Each worker runs go/network-policies as a unit of systemd.
"""

import contextlib
from collections.abc import Iterator

from tests.cluster import config, kind, tools
from tests.cluster.kind import Cluster

NAME = "network-policies"
PROGRAM, CREDENTIALS = f"/usr/local/bin/{NAME}", f"/run/{NAME}.kubeconfig"


@contextlib.contextmanager
def enforced(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Enforce them soon after the block begins, until it ends. One namespace at a time."""
    runtime, program = cluster.runtime, tools.ensure(NAME)[NAME]
    credentials = kind.kind(cluster, "get", "kubeconfig", "--internal", "--name", cluster.name)
    with contextlib.ExitStack() as stack:
        for node in cluster.workers:
            runtime.works("exec", node, "systemctl", "stop", NAME)  # left by an interrupted run
            runtime("cp", program, f"{node}:{PROGRAM}")
            stack.callback(runtime, "exec", node, "rm", PROGRAM, CREDENTIALS)
            write = f"umask 077 && cat > {CREDENTIALS}"
            runtime("exec", "--interactive", node, "sh", "-c", write, stdin=credentials)
            runtime(
                "exec", node, "systemd-run", "--quiet", "--collect", f"--unit={NAME}", PROGRAM,
                f"-kubeconfig={CREDENTIALS}", f"-namespace={namespace}", f"-pod-network={config.POD_NETWORK}",
            )  # fmt: skip
            stack.callback(runtime, "exec", node, "systemctl", "stop", NAME)
        yield
