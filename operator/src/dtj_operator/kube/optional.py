"""Kinds that an API server need not serve: PodGroups, and the Workloads of Kueue.

They may appear while the operator runs, and disappear: an upgrade of Kubernetes serves another version of
PodGroups, and Kueue can be uninstalled.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from dtj_operator.kube.api import Api
from dtj_operator.kube.discovery import first_served
from dtj_operator.kube.errors import Unavailable
from dtj_operator.kube.reflector import Reflector

LOOK_S = 30.0  # between two looks for a kind that is not served
RETRY_S = 2.0  # between two questions to an API server that does not answer
GONE_PAUSE_S = 15.0  # between two checks of a kind whose watch fails
FIRST_LISTS_S = 30.0  # how long jobs wait for the first lists


class Feature:
    """What the operator can do if a kind is served.

    plural, versions  of the kind, the newest version first
    not_served        the problem of jobs that ask for it while the API server does not serve it
    unreadable        the problem while the operator cannot read the objects; the cause follows
    grant             what to do if it may not

    api_version       that the operator uses; empty: it uses none
    settled           whether this is known, and the objects are in the cache if they can be read
    """

    def __init__(
        self, plural: str, versions: Sequence[str], *, not_served: str = "", unreadable: str, grant: str
    ) -> None:
        self._plural, self._versions = plural, versions
        self._not_served, self._unreadable, self._grant = not_served, unreadable, grant
        self._late: Sequence[Reflector[Any]] = ()  # jobs run although not all of them have a list
        self.api_version = ""
        self.settled = asyncio.Event()

    @property
    def problem(self) -> str:
        """Why the operator does not use the kind; empty: it does, or need not."""
        if self.api_version:
            return ""
        unread = next((each for each in self._late if not each.synced.is_set()), None)
        if unread is None:
            return self._not_served
        return f"{self._unreadable}: {self._grant if unread.forbidden else unread.problem or 'no answer yet'}"

    async def until_served(self, api: Api, pause_s: float) -> str:
        """Ask every `pause_s` seconds; return the version that is served."""
        while True:
            try:
                version = await first_served(api, self._versions, self._plural)
            except Unavailable:
                await asyncio.sleep(RETRY_S)
                continue
            if version:
                return version
            self.settled.set()
            await asyncio.sleep(pause_s)

    async def until_cached(self, version: str, reflectors: Sequence[Reflector[Any]]) -> None:
        """Wait for the first lists, and use this version from then on.

        Jobs, most of which do not need the kind, wait neither for a right that may never be given nor for
        long: the API server cannot list a kind whose conversion webhook is down.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LISTS_S):
                for reflector in reflectors:
                    await reflector.tried.wait()
        if not all(reflector.synced.is_set() for reflector in reflectors):
            self._late = reflectors
            self.settled.set()
        for reflector in reflectors:
            await reflector.synced.wait()
        self.api_version = version
        self.settled.set()

    async def until_gone(self, api: Api, version: str, reflectors: Sequence[Reflector[Any]]) -> None:
        """Wait until the kind was found gone, or served in another version, twice in a row.

        Once is not enough: an API server that has just started does not serve all custom resources yet.
        """
        found_gone = 0
        while found_gone < 2:
            await asyncio.sleep(GONE_PAUSE_S)
            gone = False
            if any(reflector.problem for reflector in reflectors):
                with contextlib.suppress(Unavailable):
                    gone = await first_served(api, self._versions, self._plural) != version
            found_gone = found_gone + 1 if gone else 0
