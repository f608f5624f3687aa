"""Which of the watched namespaces can be served: a deleted one must not keep the operator from the others.

The operator begins with those that it can serve. When that changes, it starts again, so that its watches and
Leases are those of the new list.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection, Sequence
from itertools import compress

from kubernetes.aio.client import Configuration

from dtj_operator.kube import paths
from dtj_operator.kube.api import CREATE_TIMEOUT_S, Api, decode
from dtj_operator.kube.bounded import bounded
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.discovery import missing_right
from dtj_operator.kube.errors import ApiError, Conflict, NotFound, Unavailable
from dtj_operator.settings import LEASE, Settings

LOOK_S = 15.0  # between two looks; a leader that loses its Lease meanwhile exits, and looks when it starts
_DRY_RUN = [("dryRun", "All")]

_log = logging.getLogger(__name__)


async def find(
    settings: Settings,
    config: Configuration,
    before: Sequence[str],
    doubtful: Collection[str] | None = None,
    *,
    within_s: float | None = None,
) -> Sequence[str]:
    """Return the watched namespaces that can be served, or all if none can: then the operator waits.

    before    those that could be served before: a namespace stays as it was without an answer about it
    doubtful  of those, the ones to ask about; None: all
    within_s  how long to wait for answers; None: until there is one, or a failure, about each namespace
    """
    api = Api(config, Bucket(1e9), random.Random(), identity=settings.identity)
    until = None if within_s is None else asyncio.get_running_loop().time() + within_s

    async def is_served(name: str) -> bool:
        was = name in before
        if not was or doubtful is None or name in doubtful:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    return await _can_serve(api, name, settings, was)
        return was

    try:
        answers = await bounded(is_served, settings.namespaces)
    finally:
        await api.close()
    return list(compress(settings.namespaces, answers)) or settings.namespaces


async def until_changed(
    settings: Settings, config: Configuration, served: Sequence[str], doubtful: Callable[[], Collection[str]]
) -> Sequence[str]:
    """Return another list of namespaces once two looks in a row have found that it can be served.

    doubtful  returns those with which something is wrong; about the others it asks once per resync
    """
    clock = asyncio.get_running_loop().time
    earlier = found = served
    asked_all_at = clock()
    while found == served or found != earlier:
        await asyncio.sleep(min(LOOK_S, settings.resync_s))
        asked: Collection[str] | None = doubtful()
        if clock() - asked_all_at >= settings.resync_s:
            asked, asked_all_at = None, clock()
        earlier, found = found, await find(settings, config, found, asked)
    return found


async def _can_serve(api: Api, namespace: str, settings: Settings, was: bool) -> bool:
    """Whether the operator may read what it must in the namespace, and have the Lease that it needs.

    was   whether it could before: this is the answer if the API server gives none
    """
    problem = ""
    try:
        for kind in (paths.pods, paths.services, paths.policies):
            await api.get(kind(namespace), [("limit", "1")])
        if settings.leader_election and namespace in settings.lease_namespaces:
            await _try_lease(api, paths.leases(namespace))
    except ApiError as error:
        if isinstance(error, Unavailable):
            return was
        problem = str(error)
    problem = problem or await missing_right(api, namespace)
    if problem and was:
        _log.error(
            "cannot serve a watched namespace; serving the others",
            extra={"job_namespace": namespace, "error": problem},
        )
    return not problem


async def _try_lease(api: Api, folder: str) -> None:
    """Raise ApiError if the Lease cannot be written, as while a webhook fails; this changes nothing.

    A create is tried only if it is not there: a used-up quota refuses it also if the Lease is there.
    """
    path = f"{folder}/{LEASE}"
    with contextlib.suppress(Conflict):  # another operator has just written it
        try:
            lease = decode(await api.get(path))
        except NotFound:
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}}
            await api.create(folder, lease, _DRY_RUN)
        else:
            await api.update(path, lease, timeout_s=CREATE_TIMEOUT_S, query=_DRY_RUN)
