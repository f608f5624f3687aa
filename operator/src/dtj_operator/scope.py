"""Which of the watched namespaces can be served: a deleted one must not keep the operator from the others.

The operator begins with those that it can serve. When that changes, it starts again, so that its watches and
Leases are those of the new list.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from itertools import compress

from kubernetes.aio.client import Configuration

from dtj_operator.kube import paths
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.discovery import missing_right
from dtj_operator.kube.errors import ApiError, Conflict, NotFound, Unavailable
from dtj_operator.settings import LEASE, Settings

LOOK_S = 30.0  # between two looks; a leader that loses its Lease meanwhile exits, and looks when it starts
AT_ONCE = 32  # namespaces: hundreds of them must not delay the start

_log = logging.getLogger(__name__)


async def find(
    settings: Settings, config: Configuration, before: Sequence[str], *, within_s: float | None = None
) -> Sequence[str]:
    """Return the watched namespaces that can be served, or all if none can: then the operator waits.

    before    those that could be served before: a namespace stays as it was without an answer about it
    within_s  how long to wait for answers; None: until there is one, or a failure, about each namespace
    """
    api = Api(config, Bucket(1e9), random.Random(), identity=settings.identity)
    at_once = asyncio.Semaphore(AT_ONCE)

    async def is_served(name: str) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s), at_once:
                return await _can_serve(api, name, settings, name in before)
        return name in before

    try:
        answers = await asyncio.gather(*map(is_served, settings.namespaces))
    finally:
        await api.close()
    return list(compress(settings.namespaces, answers)) or settings.namespaces


async def until_changed(settings: Settings, config: Configuration, served: Sequence[str]) -> None:
    """Return once another list of namespaces can be served."""
    found = served
    while found == served:
        await asyncio.sleep(min(LOOK_S, settings.resync_s))
        found = await find(settings, config, served)


async def _can_serve(api: Api, namespace: str, settings: Settings, was: bool) -> bool:
    """Whether the operator may read pods and jobs of the namespace, and have the Lease that it needs.

    was   whether it could before: this is the answer if the API server gives none
    """
    problem = ""
    try:
        await api.get(paths.pods(namespace), [("limit", "1")])
        if settings.leader_election and namespace in settings.lease_namespaces:
            await _find_lease(api, paths.leases(namespace))
    except ApiError as error:
        if isinstance(error, Unavailable) or error.status == 500:  # a webhook that fails
            return was
        problem = str(error)
    problem = problem or await missing_right(api, namespace)
    if problem and was:
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
