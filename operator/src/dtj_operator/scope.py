"""Which of the watched namespaces can be served: a deleted one must not keep the operator from the others.

The operator begins with those that it can serve. When that changes, it starts again, so that its watches and
Leases are those of the new list.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence

from kubernetes.aio.client import Configuration

from dtj_operator.kube import paths
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.discovery import missing_right
from dtj_operator.kube.errors import ApiError, Conflict, NotFound, Unavailable
from dtj_operator.settings import LEASE, Settings

LOOK_S = 30.0  # between two looks; a leader that loses its Lease meanwhile exits, and looks when it starts

_log = logging.getLogger(__name__)


async def find(settings: Settings, config: Configuration, *, before: Sequence[str] = ()) -> Sequence[str]:
    """Return the watched namespaces that can be served, or all if none can: then the operator waits.

    before  what the last call returned: a namespace stays as it was while the API server does not answer
    """
    api = Api(config, Bucket(1e9), random.Random(), identity=settings.identity)
    try:
        found = [name for name in settings.namespaces if await _can_serve(api, name, settings, before)]
    finally:
        await api.close()
    return found or settings.namespaces


async def until_changed(settings: Settings, config: Configuration, served: Sequence[str]) -> None:
    """Return once another list of namespaces can be served."""
    found = served
    while found == served:
        await asyncio.sleep(min(LOOK_S, settings.resync_s))
        found = await find(settings, config, before=served)


async def _can_serve(api: Api, namespace: str, settings: Settings, before: Sequence[str]) -> bool:
    """Whether the operator may read pods and jobs of the namespace, and have the Lease that it needs."""
    problem = ""
    try:
        await api.get(paths.pods(namespace), [("limit", "1")])
        if settings.leader_election and namespace in settings.lease_namespaces:
            await _find_lease(api, paths.leases(namespace))
    except ApiError as error:
        if isinstance(error, Unavailable) or error.status == 500:  # a webhook that fails
            return not before or namespace in before
        problem = str(error)
    problem = problem or await missing_right(api, namespace)
    if problem and (not before or namespace in before):
        _log.error(
            "cannot serve a watched namespace; serving the others",
            extra={"job_namespace": namespace, "error": problem},
        )
    return not problem


async def _find_lease(api: Api, folder: str) -> None:
    """Raise ApiError if the Lease is not there and cannot be created.

    Only then is a create tried: a used-up quota refuses it although the Lease is there.
    """
    try:
        await api.get(f"{folder}/{LEASE}")
    except NotFound:
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}}
        with contextlib.suppress(Conflict):
            await api.create(folder, lease, [("dryRun", "All")])
