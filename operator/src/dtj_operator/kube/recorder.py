"""Kubernetes Events: the same cause is one Event, counted, and never more of them than people read.

The name of an Event follows from its cause, so a restarted operator counts on instead of repeating itself.
Events are best effort and sent in the background: nothing waits for them, nothing depends on them.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from dtj_operator import names
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.errors import ApiError, Conflict

Json = dict[str, Any]

PER_SECOND, BURST = 5.0, 100.0
WAITING = 1000  # events that wait to be sent; more are dropped
AGAIN_S = 600.0  # the same cause is told at most this often
REMEMBERED = 10_000
NOTE_LIMIT = 1024  # of the API

_log = logging.getLogger(__name__)


class Recorder:
    """`record` returns at once; `run` sends."""

    def __init__(self, api: Api, identity: str, wall: Callable[[], float]) -> None:
        self._api, self._identity, self._wall = api, identity, wall
        self._bucket = Bucket(PER_SECOND, BURST)
        self._queue: asyncio.Queue[tuple[Json, int]] = asyncio.Queue(WAITING)
        # name -> (when again, how often so far)
        self._told: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def record(self, regarding: Json, *, kind: str, reason: str, note: str, once_per: str) -> None:
        """Tell about an object; events of one reason with the same `once_per` are one.

        regarding   apiVersion, kind, namespace, name, uid
        kind        Normal or Warning
        """
        name, now = event_name(regarding, reason, once_per), asyncio.get_running_loop().time()
        again_at, count = self._told.get(name, (now, 0))
        if again_at > now or self._queue.full():
            return
        self._told[name] = now + AGAIN_S, count + 1
        self._told.move_to_end(name)
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        body = self._body(regarding, name) | {"type": kind, "reason": reason, "action": reason}
        self._queue.put_nowait((body | {"note": note[:NOTE_LIMIT]}, count + 1))

    async def run(self) -> None:
        while True:
            body, count = await self._queue.get()
            await self._bucket.take()
            try:
                await self._send(body, count)
            except ApiError as error:
                _log.debug("failed to send an Event", extra={"reason": body["reason"], "error": str(error)})

    async def _send(self, body: Json, count: int) -> None:
        folder = names.events_path(body["metadata"]["namespace"])
        try:
            await self._api.create(folder, body)
        except Conflict:  # told before, by this process or by one before it: at least the second time
            series = {"count": max(2, count), "lastObservedTime": body["eventTime"]}
            await self._api.patch(f"{folder}/{body['metadata']['name']}", {"series": series})

    def _body(self, regarding: Json, name: str) -> Json:
        moment = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": regarding["namespace"]},
            "eventTime": moment,
            "regarding": regarding,
            "reportingController": names.MANAGER,
            "reportingInstance": self._identity[:128],
        }


def event_name(regarding: Json, reason: str, once_per: str) -> str:
    """The same cause has the same name, in every process."""
    cause = hashlib.sha256(f"{regarding['uid']}/{reason}/{once_per}".encode()).hexdigest()[:16]
    return f"{regarding['name']}.{cause}"
