"""The newest log lines of some replicas, read again at each question."""

import re
import threading
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count

from dtj_client.kube.kubectl import Json, Kubectl, container_of, selector
from dtj_client.show import logs
from dtj_client.show.logs import Line

KEPT = 5000  # lines
_LATE = timedelta(seconds=30)  # a replica's clock may be behind that of another one by this much
_LONG = 4000  # characters of a line that are shown
_IDS = count(1)
_PREFIXED = re.compile(r"\[pod/(?P<pod>[^/\]]+)/[^\]]*\] (?P<text>.*)")


def parse(said: str, job: str) -> Iterator[Line]:
    """Yield the lines of `kubectl logs --prefix --timestamps` by replica; other lines are kubectl's own."""
    found: dict[str, list[str]] = {}
    for prefixed in filter(None, map(_PREFIXED.match, said.split("\n"))):
        found.setdefault(prefixed["pod"].removeprefix(f"{job}-"), []).append(prefixed["text"])
    for index, lines in found.items():
        if index.isdecimal():
            for line in logs.parse(int(index), lines, drawings=False):
                yield replace(line, text=line.text[:_LONG])


class Log:
    """The merged log of some replicas of a job.

    first  lines of each pod to begin with
    id     of this object: another one numbers its lines from 1 again
    """

    def __init__(self, kubectl: Kubectl, job: Json, replicas: Collection[int], *, first: int) -> None:
        name = job["metadata"]["name"]
        self.id = str(next(_IDS))
        self._kubectl, self._job, self._first = kubectl, name, first
        self._container = container_of(job)
        self._selector = selector(name, replicas)
        self._lines: deque[tuple[int, Line]] = deque(maxlen=KEPT)
        self._number = 0
        self._newest: dict[int, str] = {}  # time of the last line of each replica
        self._lock = threading.Lock()

    def after(self, number: int) -> list[tuple[int, Line]]:
        """Read on; return the numbered lines after this number, in order. Raises ClientError."""
        with self._lock:
            self._read()
            return [(each, line) for each, line in self._lines if each > number]

    def _read(self) -> None:
        since: tuple[str, ...] = ()
        lines = self._first
        if self._newest:
            newest = datetime.fromisoformat(max(self._newest.values()))
            since = (f"--since-time={(newest - _LATE).isoformat(timespec='seconds')}",)
            lines = KEPT
        flags = (
            f"--container={self._container}",
            "--prefix",
            "--timestamps",
            "--ignore-errors",
            f"--tail={lines}",
        )
        said = self._kubectl.run("logs", "-l", self._selector, *flags, *since)
        new = sorted(line for line in parse(said, self._job) if line.at > self._newest.get(line.replica, ""))
        for line in new:
            self._number += 1
            self._lines.append((self._number, line))
            self._newest[line.replica] = line.at
