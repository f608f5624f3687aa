"""Leases of nodes: how long ago a kubelet gave a sign of life. Read only for nodes that are in doubt.

Each kubelet renews its own every ten seconds: to watch them all would be hundreds of events a second in a
large cluster, for the few that ever matter.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

import msgspec

from dtj_operator import names
from dtj_operator.kube.errors import ApiError, Refused
from dtj_operator.kube.nodes import NodeLease
from dtj_operator.kube.wire import Wire

FRESH_S = 1.0  # several jobs doubt the same node: what was read so lately is not read again
GAP_S = 12.0  # between two looks anything may have happened, also that nobody could renew
FORBIDDEN_PAUSE_S = 300.0

_log = logging.getLogger(__name__)


class _Spec(Wire):
    renew_time: datetime | None = None
    lease_duration_seconds: int | None = None


class _Lease(Wire):
    spec: _Spec


_decode = msgspec.json.Decoder(_Lease).decode


@dataclass(frozen=True, kw_only=True)
class _Look:
    """at: when the last one was begun; since: when the first one that found the same was over."""

    renewed_at: float
    duration_s: float
    since: float
    at: float


class NodeLeases:
    """Remembers, of nodes that are looked at again and again, since when their leases are unchanged.

    get  reads the object at a path; raises ApiError
    """

    def __init__(self, get: Callable[[str], Awaitable[bytes]]) -> None:
        self._get = get
        self._looks: dict[str, _Look] = {}
        self._forbidden = False
        self._allowed_at = float("-inf")  # when to try again, where the right to read them is lacking

    async def look(self, nodes: Iterable[str]) -> dict[str, NodeLease]:
        """Return those of these nodes' leases that there are and that can be read now."""
        now = asyncio.get_running_loop().time()
        self._looks = {node: look for node, look in self._looks.items() if now - look.at <= GAP_S}
        if now < self._allowed_at:
            return {}
        stale = [n for n in nodes if n not in self._looks or now - self._looks[n].at >= FRESH_S]
        read = await asyncio.gather(*map(self._read, stale))
        for node, look in zip(stale, read, strict=True):
            if look is None:  # nothing is known of the time since the last one either
                self._looks.pop(node, None)
            else:
                self._looks[node] = look
        return {
            node: NodeLease(
                renewed_at=look.renewed_at,
                duration_s=look.duration_s,
                unchanged_s=max(0.0, look.at - look.since),
            )
            for node in nodes
            if (look := self._looks.get(node)) is not None
        }

    async def _read(self, node: str) -> _Look | None:
        """One look, or None where it fails; other jobs may be looking at the same node."""
        before, clock = self._looks.get(node), asyncio.get_running_loop().time
        at = clock()
        try:
            spec = _decode(await self._get(names.node_lease_path(node))).spec
        except Refused as error:
            self._forbid(error)
            return None
        except (ApiError, msgspec.MsgspecError):
            return None
        if spec.renew_time is None or not spec.lease_duration_seconds:
            return None
        self._forbidden = False
        renewed_at = spec.renew_time.timestamp()
        same = before is not None and before.renewed_at == renewed_at
        return _Look(
            renewed_at=renewed_at,
            duration_s=float(spec.lease_duration_seconds),
            since=before.since if before is not None and same else clock(),
            at=at,
        )

    def _forbid(self, error: Refused) -> None:
        self._allowed_at = asyncio.get_running_loop().time() + FORBIDDEN_PAUSE_S
        if not self._forbidden:
            self._forbidden = True
            told = {"what": "leases of nodes", "error": str(error)}
            _log.warning("no permission to read these objects; continuing without them", extra=told)
