"""Kubernetes Events: repetitions of one cause are counted in one Event, and the number of Events is limited.

The name of an Event is derived from its cause, so a restarted operator continues the count instead of
creating a second Event. Events are best effort and sent in the background: nothing waits for them or depends
on them. A namespace whose Events are slow, as with a webhook, delays only its own.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable

from dtj_operator import metrics
from dtj_operator.engine.newest import Newest
from dtj_operator.engine.shares import Shares
from dtj_operator.kube import paths
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.errors import ApiError, Conflict, Refused
from dtj_operator.model import names, times
from dtj_operator.model.json import Json

PER_SECOND, BURST = 5.0, 100.0
QUEUE_LIMIT = 1000  # Events waiting to be sent, at most half of them of one namespace; more are dropped
IN_FLIGHT = 8  # at most half of them of one namespace
REPEAT_S = 600.0  # a repetition of the same cause is sent at most this often
REMEMBERED = 10_000
_TERMINATING = "being terminated"  # of a namespace, in the API server's message: its Events do not matter
NOTE_LIMIT = 1024  # bytes of UTF-8; limit of the API

_log = logging.getLogger(__name__)


class Recorder:
    """`record` returns at once; `run` sends."""

    def __init__(self, api: Api, identity: str, wall: Callable[[], float]) -> None:
        self._api, self._identity, self._wall = api, identity, wall
        self._bucket = Bucket(PER_SECOND, BURST)
        self._queue: asyncio.Queue[tuple[Json, int]] = asyncio.Queue()
        self._waiting, self._in_flight = Shares[str](QUEUE_LIMIT), Shares[str](IN_FLIGHT)  # by namespace
        # name -> (when it may be sent again, how many times it was sent)
        self._sent = Newest[str, tuple[float, int]](REMEMBERED)
        self._warns_at = float("-inf")

    def record(self, regarding: Json, *, kind: str, reason: str, note: str, once_per: str) -> None:
        """Queue an Event about an object; Events with the same reason and `once_per` are one Event.

        regarding   apiVersion, kind, namespace, name, uid
        kind        Normal or Warning
        """
        name, now = event_name(regarding, reason, once_per), asyncio.get_running_loop().time()
        again_at, count = self._sent.get(name, (now, 0))
        if again_at > now:
            return
        if not self._waiting.try_take(regarding["namespace"]):
            metrics.EVENTS_DROPPED.labels("queue_full").inc()
            return
        self._sent[name] = now + REPEAT_S, count + 1
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": regarding["namespace"]},
            "eventTime": times.with_fraction(self._wall()),
            "regarding": regarding,
            "reportingController": names.MANAGER,
            "reportingInstance": self._identity[:128],
            "type": kind,
            "reason": reason,
            "action": reason,
            "note": note.encode()[:NOTE_LIMIT].decode(errors="ignore"),
        }
        self._queue.put_nowait((body, count + 1))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._deliver(*await self._queue.get()))

    async def _deliver(self, body: Json, count: int) -> None:
        namespace = body["metadata"]["namespace"]
        async with self._in_flight.hold(namespace):
            await self._bucket.take()
            try:
                await self._send(body, count)
            except ApiError as error:
                metrics.EVENTS_DROPPED.labels("refused").inc()
                _log.log(
                    self._level(error),
                    "failed to send an Event",
                    extra={"reason": body["reason"], "error": str(error)},
                )
        self._waiting.give_back(namespace)

    def _level(self, error: ApiError) -> int:
        """A warning now and then if there would be no Events at all, as without the right."""
        now = asyncio.get_running_loop().time()
        if not isinstance(error, Refused) or _TERMINATING in error.message or now < self._warns_at:
            return logging.DEBUG
        self._warns_at = now + REPEAT_S
        return logging.WARNING

    async def _send(self, body: Json, count: int) -> None:
        folder = paths.events(body["metadata"]["namespace"])
        try:
            await self._api.create(folder, body)
        except Conflict:  # this process or an earlier one has created it: this is at least the second time
            series = {"count": max(2, count), "lastObservedTime": body["eventTime"]}
            await self._api.patch(f"{folder}/{body['metadata']['name']}", {"series": series})


def event_name(regarding: Json, reason: str, once_per: str) -> str:
    """Derive the name from the cause, so that it is the same in every process."""
    cause = hashlib.sha256(f"{regarding['uid']}/{reason}/{once_per}".encode()).hexdigest()[:16]
    return f"{regarding['name']}.{cause}"
