"""Where the API server is and who we are: in a pod the service account, else the kubeconfig (KUBECONFIG)."""

import os

from kubernetes.aio import config
from kubernetes.aio.client import Configuration


class NoCluster(Exception):  # noqa: N818
    """There is no way to an API server: what was tried, what to do."""


async def load() -> Configuration:
    """Load the configuration; tokens that expire are refreshed by the client."""
    loaded = Configuration()
    try:
        if "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=loaded)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(client_configuration=loaded)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        message = f"no cluster to work for: {error}; run in a pod with a service account, or set KUBECONFIG"
        raise NoCluster(message) from error
    return loaded
