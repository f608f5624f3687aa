"""Where the API server is and who we are: in a pod the service account, else the kubeconfig (KUBECONFIG)."""

import os
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

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
            # By default the client takes KUBECONFIG as it was when the client was imported.
            path = os.environ.get("KUBECONFIG") or None
            await config.load_kube_config(path, client_configuration=loaded)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        message = f"no cluster to work for: {error}; run in a pod with a service account, or set KUBECONFIG"
        raise NoCluster(message) from error
    # The transport would look for proxies and a .netrc again before every request, in a thread: a tenth of
    # the operator's time. The proxy cannot change, so it is looked for once.
    loaded.client_session_kwargs = {"trust_env": False}
    loaded.proxy = loaded.proxy or _proxy(loaded.host)
    return loaded


def _proxy(server: str) -> str | None:
    """The proxy that the environment (HTTPS_PROXY, NO_PROXY, ...) names for a server."""
    url = urlsplit(server)
    if proxy_bypass(url.netloc):
        return None
    return getproxies().get(url.scheme)
