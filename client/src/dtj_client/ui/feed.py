"""What the page of one job reads while it is open."""

import threading
import time
from collections.abc import Collection
from datetime import UTC, datetime
from urllib.parse import quote

from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Json, Kubectl, selector
from dtj_client.show.readings import Reading, of_lines
from dtj_client.ui.agent import Agent
from dtj_client.ui.curves import StepTimes
from dtj_client.ui.log import Log
from dtj_client.ui.watch import Watch

_READ_S = 4.0  # between two answers of the agent, and two readings of the log for the curves
_LINES_FOR_CURVES = 5000
_LINES_TO_SHOW = 200  # of each replica
_READINGS = 20_000  # kept


class Feed:
    """Pods, Events, log and agent of one job.

    kubectl  for the namespace of the job
    used     when a page last asked, in seconds of time.monotonic
    """

    def __init__(self, kubectl: Kubectl, job: Json) -> None:
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        core = f"/api/v1/namespaces/{namespace}"
        self.used = time.monotonic()
        self._kubectl, self._job = kubectl, job
        self._pods = Watch(kubectl, f"{core}/pods", f"labelSelector={quote(selector(name))}")
        about = f"involvedObject.uid={job['metadata']['uid']}"
        self._events = Watch(kubectl, f"{core}/events", f"fieldSelector={quote(about)}")
        self._agent = Agent(kubectl, f"{name}-0")
        self._steps = StepTimes()
        self._curves_log = Log(kubectl, job, (0,), first=_LINES_FOR_CURVES)
        self._readings: list[Reading] = []
        self._read_to = 0
        self._logs: dict[tuple[int, ...], Log] = {}
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # of the step times
        self._unread: dict[str, ClientError | None] = {}

    def start(self) -> None:
        """Read pods and Events once, then continue in threads."""
        for each in (self._pods, self._events):
            each.start(tries_again=True)
        self._agent.start()
        threading.Thread(target=self._keep_reading, daemon=True).start()

    def stop(self) -> None:
        """Stop all reading."""
        self._stopped.set()
        for each in (self._pods, self._events, self._agent):
            each.stop()

    @property
    def pods(self) -> list[Json]:
        """The pods of the job."""
        return self._pods.objects()[1]

    @property
    def events(self) -> list[Json]:
        """The Events about the job."""
        return self._events.objects()[1]

    @property
    def readings(self) -> list[Reading]:
        """What rank 0 has logged, the oldest first."""
        return list(self._readings)

    def heat(self) -> Json:
        """Step times by rank, and why there are none."""
        with self._lock:
            return {**self._steps.heat(), "problem": self._agent.problem}

    def problems(self) -> list[str]:
        """What cannot be read."""
        found = {"pods": self._pods.problem, "events": self._events.problem, **self._unread}
        return [f"{what}: {error.message}" for what, error in found.items() if error]

    def log(self, replicas: Collection[int], known: str, after: int) -> Json:
        """Lines of these replicas after this number of the known log, else from the first one, and its id.

        Raises ClientError.
        """
        key = tuple(sorted(replicas))
        log = self._logs.setdefault(key, Log(self._kubectl, self._job, key, first=_LINES_TO_SHOW))
        lines = [
            {"number": number, "at": line.at, "replica": line.replica, "rank": line.rank, "text": line.text}
            for number, line in log.after(after if known == log.id else 0)
        ]
        return {"log": log.id, "lines": lines}

    def _keep_reading(self) -> None:
        reads = {"steps of the ranks": self._read_steps, "log of replica 0": self._read_log}
        while not self._stopped.is_set():
            for what, read in reads.items():
                try:
                    read()
                    self._unread[what] = None
                except Exception as error:  # noqa: BLE001 - the page shows it, and the next reading may succeed
                    self._unread[what] = error if isinstance(error, ClientError) else ClientError(repr(error))
            self._stopped.wait(_READ_S)

    def _read_steps(self) -> None:
        answer = self._agent.status()
        if answer is not None:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            with self._lock:
                self._steps.see(answer, at, time.monotonic())

    def _read_log(self) -> None:
        found = self._curves_log.after(self._read_to)
        if found:
            self._read_to = found[-1][0]
            new = of_lines(line for _, line in found)
            self._readings = [*self._readings, *new][-_READINGS:]
