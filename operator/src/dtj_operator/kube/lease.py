"""Leader election with one Lease: one of several operators is the leader, the others keep warm caches.

The leader renews the Lease every 2 s. Another operator takes over if it sees no renewal for 15 s, by its own
monotonic clock. A leader that cannot renew for 10 s stops leading, 5 s before any other may start, and its
process exits at once. On a clean exit the leader releases the Lease, so the next one need not wait.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from dtj_operator.kube import paths
from dtj_operator.kube.api import Api, decode
from dtj_operator.kube.bounded import AT_ONCE, bounded
from dtj_operator.kube.errors import ApiError, Conflict, NotFound, Unavailable
from dtj_operator.model import times
from dtj_operator.model.json import Json

DURATION_S = 15.0
RENEW_DEADLINE_S = 10.0
PERIOD_S = 2.0
TRY_TIMEOUT_S = 5.0  # if the API server is slow, no other operator gets the Lease any faster

_log = logging.getLogger(__name__)


class Lost(Exception):  # noqa: N818
    """The lease was not renewed in time, or another operator holds it: this process must not act."""


class Lease:
    """One Lease object, and what this process knows of it.

    refused  what the API server said if another try would fail too, as without the right; else empty
    failed   whether the last try ended without an answer, or with a refusal
    """

    def __init__(self, api: Api, namespace: str, name: str, identity: str, wall: Callable[[], float]) -> None:
        self._api, self._wall = api, wall
        self.namespace, self._name, self._folder = namespace, name, paths.leases(namespace)
        self._path, self.full_name = f"{self._folder}/{name}", f"{namespace}/{name}"
        self.identity, self.refused, self.failed = identity, "", False
        self._object: Json = {}  # as last read or written
        self._changed_at = 0.0  # by our own clock: other machines' clocks are not trusted
        self._renewed_at = float("-inf")

    @property
    def held(self) -> bool:
        """Whether this process may act now; False after it was frozen. Checked before every reconcile."""
        return asyncio.get_running_loop().time() - self._renewed_at < RENEW_DEADLINE_S

    async def acquire(self, next_ones: Sequence["Lease"] = ()) -> None:
        """Wait until the lease is ours.

        next_ones   are needed after it, and read while its holder seems to be dead: else each, when it is
                    its turn, would be seen unchanged for another 15 s before it counts as such too
        """
        fields = {"lease": self.full_name}
        _log.info("waiting for the lease", extra={**fields, "identity": self.identity})
        seen = ""
        while not await self._try():
            if self._holder != seen:
                seen = self._holder
                _log.info("another operator leads", extra={**fields, "holder": seen})
            unchanged_s = asyncio.get_running_loop().time() - self._changed_at
            doubtful = next_ones if unchanged_s > 1.5 * PERIOD_S else ()
            await asyncio.gather(asyncio.sleep(PERIOD_S), bounded(Lease._look, doubtful))
        _log.info("became leader", extra={**fields, "identity": self.identity})

    async def keep(self) -> None:
        """Renew forever; raise Lost as soon as another operator may hold the lease."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            await asyncio.sleep(max(0.0, began + PERIOD_S - clock()))
            began = clock()
            if not await self._try() and not self.held:
                raise Lost(f"lease {self._name} was not renewed for {RENEW_DEADLINE_S:.0f} s")
            if self._holder not in ("", self.identity):
                raise Lost(f"lease {self._name} is held by {self._holder}")

    async def release(self) -> None:
        """Release the lease if this process holds it. After a failure the next leader waits 15 s longer."""
        if not self.held:
            return
        try:
            async with asyncio.timeout(TRY_TIMEOUT_S):
                try:
                    await self._free()
                except Conflict:  # a renewal that was cancelled on its way was stored after all, in between
                    await self._free()
        except (ApiError, TimeoutError) as error:
            _log.warning("failed to release the lease", extra={"error": str(error)})
        self._renewed_at = float("-inf")

    async def _free(self) -> None:
        lease = decode(await self._api.get(self._path))
        if lease["spec"].get("holderIdentity") == self.identity:
            free = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
            await self._api.update(self._path, {**lease, "spec": {**lease["spec"], **free}})

    @property
    def _holder(self) -> str:
        return str(self._spec.get("holderIdentity") or "")

    async def _look(self) -> None:
        with contextlib.suppress(ApiError, TimeoutError):  # a try for it says what is wrong
            async with asyncio.timeout(TRY_TIMEOUT_S):
                await self._read()

    async def _try(self) -> bool:
        """Acquire or renew the lease; return whether this process holds it now."""
        began = asyncio.get_running_loop().time()
        left = self._renewed_at + RENEW_DEADLINE_S - began
        try:
            # The leader's try may last at most until its renewal deadline.
            async with asyncio.timeout(min(TRY_TIMEOUT_S, left) if left > 0 else TRY_TIMEOUT_S):
                await self._write()
        except Conflict:
            return False  # another operator was faster; the next try shows which
        except (ApiError, TimeoutError) as error:
            self.failed = True
            self.refused = "" if isinstance(error, Unavailable | TimeoutError) else str(error)
            _log.warning(
                "failed to read or renew the lease", extra={"error": str(error) or type(error).__name__}
            )
            return False
        self.refused, self.failed = "", False
        if self._holder != self.identity:
            return False
        self._renewed_at = began  # the others count from when the server stored it, which is later
        return True

    async def _write(self) -> None:
        if self._holder == self.identity:
            # Our own renewal was the last known change: no need to read first.
            with contextlib.suppress(Conflict, NotFound):
                await self._put()
                return
        try:
            await self._read()
        except NotFound:
            meta = {"name": self._name, "namespace": self.namespace}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}
            self._remember(decode(await self._api.create(self._folder, body | {"spec": self._claim({})})))
            return
        unchanged_s = asyncio.get_running_loop().time() - self._changed_at
        expired = unchanged_s >= float(self._spec.get("leaseDurationSeconds") or 0)
        if expired or self._holder in ("", self.identity):
            await self._put()

    async def _read(self) -> None:
        self._remember(decode(await self._api.get(self._path)))

    async def _put(self) -> None:
        """Claim the last known Lease; raises Conflict if it has changed since."""
        body = {**self._object, "spec": {**self._spec, **self._claim(self._spec)}}
        self._remember(decode(await self._api.update(self._path, body)))

    def _remember(self, lease: Json) -> None:
        if (lease.get("spec") or {}) != self._spec or not self._object:
            self._changed_at = asyncio.get_running_loop().time()
        self._object = lease

    @property
    def _spec(self) -> Json:
        return self._object.get("spec") or {}

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
        return times.with_fraction(self._wall())


async def acquire_all(leases: Sequence[Lease]) -> AsyncIterator[Lease]:
    """Acquire them in this order; yield each once it is ours, to be kept while the next one is awaited.

    After each that was awaited, a batch is tried at once. Of these, it keeps those before the first that is
    not free: an operator that waits for one holds none of the later ones, else two could wait for each other.
    """
    left = list(leases)
    while left:
        first, *batch = left[:AT_ONCE]
        await first.acquire(left[1:])
        yield first
        taken = [*await bounded(Lease._try, batch), False].index(False)
        for lease in batch[:taken]:
            yield lease
        await bounded(Lease.release, batch[taken:])
        del left[: 1 + taken]
