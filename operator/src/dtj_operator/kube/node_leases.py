"""Leases of nodes: when each kubelet last sent a heartbeat. Read only for nodes that may be lost.

Each kubelet renews its Lease every ten seconds. Watching all of them would mean hundreds of events a second
in a large cluster, although only a few ever matter.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime

import msgspec

from dtj_operator.kube import paths
from dtj_operator.kube.errors import ApiError
from dtj_operator.kube.wire import Wire
from dtj_operator.model.views import NodeLease

FRESH_S = 1.0  # several jobs ask about the same node: a Lease read this recently is not read again
LONGEST_GAP_S = 12.0  # after a longer gap between two reads, the Lease may have been renewed in between


class _Spec(Wire):
    renew_time: datetime | None = None
    lease_duration_seconds: int | None = None


class _Lease(Wire):
    spec: _Spec


_decode = msgspec.json.Decoder(_Lease).decode


class _Reading(NodeLease, frozen=True, gc=False, kw_only=True):
    """at: when the last read started; since: when the first read that found the same renewal ended."""

    at: float
    since: float


class NodeLeases:
    """Remembers, for nodes that are read repeatedly, since when their Lease is unchanged.

    get  reads the object at a path; raises ApiError
    """

    def __init__(self, get: Callable[[str], Awaitable[bytes]]) -> None:
        self._get = get
        self._readings: dict[str, _Reading] = {}

    async def read(self, nodes: Iterable[str]) -> dict[str, NodeLease]:
        """Return the Leases of these nodes, without those that do not exist or cannot be read now."""
        now = asyncio.get_running_loop().time()
        self._readings = {n: r for n, r in self._readings.items() if now - r.at <= LONGEST_GAP_S}
        stale = [n for n in nodes if n not in self._readings or now - self._readings[n].at >= FRESH_S]
        readings = await asyncio.gather(*map(self._read_one, stale))
        for node, reading in zip(stale, readings, strict=True):
            if reading is None:  # the time since the last successful read is unknown too
                self._readings.pop(node, None)
            else:
                self._readings[node] = reading
        return {node: self._readings[node] for node in nodes if node in self._readings}

    async def _read_one(self, node: str) -> _Reading | None:
        """Read one Lease; None if that fails. Other jobs may be reading the same Lease."""
        before, clock = self._readings.get(node), asyncio.get_running_loop().time
        at = clock()
        try:
            spec = _decode(await self._get(f"{paths.leases(paths.NODE_LEASES)}/{node}")).spec
        except (ApiError, msgspec.MsgspecError):
            return None
        if spec.renew_time is None or not spec.lease_duration_seconds:
            return None
        renewed_at = spec.renew_time.timestamp()
        same = before is not None and before.renewed_at == renewed_at
        since = before.since if before is not None and same else clock()
        return _Reading(
            renewed_at=renewed_at,
            duration_s=float(spec.lease_duration_seconds),
            unchanged_s=max(0.0, at - since),
            at=at,
            since=since,
        )
