"""Kinds that an API server need not serve: PodGroups, and the Workloads of Kueue.

They may appear while the operator runs, and disappear: an upgrade of Kubernetes serves another version of
PodGroups, and Kueue can be uninstalled.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

from dtj_operator.kube.api import Api
from dtj_operator.kube.errors import Unavailable
from dtj_operator.kube.reflector import Reflector

RETRY_S = 2.0  # between two questions to an API server that does not answer
GONE_PAUSE_S = 15.0  # between two checks of a kind whose watch fails


class Feature(Protocol):
    """What the operator can do if a kind is served.

    settled   whether it is known if the operator can do it, and the objects are in the cache
    """

    settled: asyncio.Event

    async def discover(self, api: Api) -> str:
        """Return the version that the API server serves; empty: none. Raises Unavailable."""

    def lack_rights(self) -> None:
        """The operator may not read the objects."""

    def use(self, api_version: str) -> None:
        """The objects of this version are in the cache."""


async def until_served(feature: Feature, api: Api, pause_s: float) -> str:
    """Ask every `pause_s` seconds; return the version that is served."""
    while True:
        try:
            version = await feature.discover(api)
        except Unavailable:
            await asyncio.sleep(RETRY_S)
            continue
        if version:
            return version
        feature.settled.set()
        await asyncio.sleep(pause_s)


async def until_cached(feature: Feature, version: str, reflectors: Sequence[Reflector[Any]]) -> None:
    """Wait for the first lists, and use the feature from then on."""
    for reflector in reflectors:
        await reflector.tried.wait()
    if not all(reflector.synced.is_set() for reflector in reflectors):
        feature.lack_rights()
        feature.settled.set()  # jobs do not wait for a right that may never be given
    for reflector in reflectors:
        await reflector.synced.wait()
    feature.use(version)
    feature.settled.set()


async def until_gone(feature: Feature, api: Api, version: str, reflectors: Sequence[Reflector[Any]]) -> None:
    """Wait until the kind was found gone, or served in another version, twice in a row.

    Once is not enough: an API server that has just started does not serve all custom resources yet.
    """
    found_gone = 0
    while found_gone < 2:
        await asyncio.sleep(GONE_PAUSE_S)
        gone = False
        if any(reflector.problem for reflector in reflectors):
            with contextlib.suppress(Unavailable):
                gone = await feature.discover(api) != version
        found_gone = found_gone + 1 if gone else 0
