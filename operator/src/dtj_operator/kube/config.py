"""The API server and our credentials: the service account in a pod, else the kubeconfig (KUBECONFIG)."""

import contextlib
import os
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio import config
from kubernetes.aio.client import Configuration


class NoCluster(Exception):  # noqa: N818
    """No configuration of a cluster was found; the message says what was tried and what to do."""


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
        fix = "run in a pod with a service account, or set KUBECONFIG"
        raise NoCluster(f"cannot load the cluster configuration: {error}; {fix}") from error
    # Looked up once: aiohttp would do it before every request, in a thread.
    server, proxies = urlsplit(loaded.host), getproxies()
    no_proxy = proxies.get("no", "")
    near = proxy_bypass(server.netloc) or _is_in_range(server.hostname or "", no_proxy)
    if not loaded.proxy and not near:
        loaded.proxy = proxies.get(server.scheme)  # HTTPS_PROXY
    return loaded


def _is_in_range(host: str, no_proxy: str) -> bool:
    """Whether NO_PROXY has a range of addresses with this one: programs in Go understand ranges."""
    with contextlib.suppress(ValueError):  # a name, or not a range
        ranges = [ip_network(part.strip(), strict=False) for part in no_proxy.split(",") if "/" in part]
        return any(ip_address(host) in each for each in ranges)
    return False
