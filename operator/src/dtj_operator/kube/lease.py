"""Leader election by one Lease: of several operators exactly one works, the others keep warm caches.

The holder renews every 2 s. Who sees no renewal for 15 s, by his own monotonic clock, takes over; a holder
that could not renew for 10 s stops being one, 5 s before anybody else may begin, and its process ends at
once. A clean end gives the lease back, so that nobody waits.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from dtj_operator import metrics, names
from dtj_operator.kube.api import Api, decode
from dtj_operator.kube.errors import ApiError, Conflict, NotFound

Json = dict[str, Any]

DURATION_S = 15.0
RENEW_DEADLINE_S = 10.0
PERIOD_S = 2.0
TRY_S = 5.0  # a slow API server is no reason to give up what nobody else could get any faster

_log = logging.getLogger(__name__)


class Lost(Exception):  # noqa: N818
    """The lease could not be renewed in time, or somebody else has it: this process must not act any more."""


class Lease:
    """One Lease object, and what this process knows of it."""

    def __init__(self, api: Api, namespace: str, name: str, identity: str, wall: Callable[[], float]) -> None:
        self._api, self._wall = api, wall
        self._folder, self._namespace, self._name = names.leases_path(namespace), namespace, name
        self.identity = identity
        self._object: Json = {}  # as last seen
        self._seen_at = 0.0  # and since when, by our own clock: other machines' clocks are not trusted
        self._renewed_at = float("-inf")

    @property
    def held(self) -> bool:
        """Whether this process may act now; asked before every look, for one that was frozen may not."""
        return asyncio.get_running_loop().time() - self._renewed_at < RENEW_DEADLINE_S

    async def acquire(self) -> None:
        """Wait until the lease is ours."""
        _log.info("waiting for the lease", extra={"lease": self._name, "identity": self.identity})
        while not await self._try():  # noqa: ASYNC110 - it asks another machine
            await asyncio.sleep(PERIOD_S)
        metrics.LEADER.set(1)
        _log.info("became leader", extra={"lease": self._name, "identity": self.identity})

    async def keep(self) -> None:
        """Renew for ever; raise Lost as soon as the lease may be somebody else's."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            while True:
                await asyncio.sleep(max(0.0, began + PERIOD_S - clock()))
                began = clock()
                if not await self._try() and not self.held:
                    raise Lost(f"lease {self._name} was not renewed for {RENEW_DEADLINE_S:.0f} s")
                if self._holder not in ("", self.identity):
                    raise Lost(f"lease {self._name} is held by {self._holder}")
        finally:
            metrics.LEADER.set(0)

    async def release(self) -> None:
        """Give the lease back, if it is ours; a failure costs the successor 15 s, nothing else."""
        if not self.held:
            return
        try:
            async with asyncio.timeout(TRY_S):
                lease = decode(await self._api.get(self._path))
                if lease["spec"].get("holderIdentity") == self.identity:
                    free = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
                    await self._api.update(self._path, {**lease, "spec": {**lease["spec"], **free}})
        except (ApiError, TimeoutError) as error:
            _log.warning("failed to release the lease", extra={"error": str(error)})
        self._renewed_at = float("-inf")

    @property
    def _holder(self) -> str:
        return str(self._seen.get("holderIdentity") or "")

    async def _try(self) -> bool:
        """Take or renew the lease if possible; return whether it was."""
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._patience()):
                await self._write()
        except Conflict:
            return False  # somebody was faster; the next look shows who
        except (ApiError, TimeoutError) as error:
            _log.warning(
                "failed to read or renew the lease", extra={"error": str(error) or type(error).__name__}
            )
            return False
        if self._holder != self.identity:
            return False
        self._renewed_at = began  # not now: the others count from when the server wrote it, which was later
        return True

    async def _write(self) -> None:
        if self._holder == self.identity:
            try:  # what was seen last was our own renewal: no need to look first
                await self._put()
            except (Conflict, NotFound):
                pass
            else:
                return
        try:
            self._see(decode(await self._api.get(self._path, timeout_s=TRY_S)))
        except NotFound:
            await self._make()
            return
        if self._holder in ("", self.identity) or self._expired():
            await self._put()

    async def _make(self) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._claim({}),
        }
        self._see(decode(await self._api.create(self._folder, body)))

    async def _put(self) -> None:
        """Claim what was seen last; a Conflict where it is no longer so."""
        body = {**self._object, "spec": {**self._seen, **self._claim(self._seen)}}
        self._see(decode(await self._api.update(self._path, body, timeout_s=TRY_S)))

    def _patience(self) -> float:
        """How long a try may take: a holder has until its deadline."""
        left = self._renewed_at + RENEW_DEADLINE_S - asyncio.get_running_loop().time()
        return min(TRY_S, left) if left > 0 else TRY_S

    def _see(self, lease: Json) -> None:
        if (lease.get("spec") or {}) != self._seen or not self._object:
            self._seen_at = asyncio.get_running_loop().time()
        self._object = lease

    @property
    def _seen(self) -> Json:
        return self._object.get("spec") or {}

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self._name}"

    def _expired(self) -> bool:
        return asyncio.get_running_loop().time() - self._seen_at >= float(
            self._seen.get("leaseDurationSeconds") or 0
        )

    def _claim(self, spec: Json) -> Json:
        ours = spec.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(DURATION_S),
            "acquireTime": spec.get("acquireTime") if ours else self._now(),
            "renewTime": self._now(),
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (not ours and bool(spec)),
        }

    def _now(self) -> str:
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
