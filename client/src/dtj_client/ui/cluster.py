"""What the pages read from the cluster, with the user's own rights."""

import threading
import time
from collections import defaultdict
from dataclasses import asdict

from dtj_client.kube.kubectl import GROUP, VERSION, Json, Kubectl, parse_indices, replicas_of
from dtj_client.show.events import of_api
from dtj_client.show.readings import Reading
from dtj_client.show.report import advice, condition
from dtj_client.ui import curves, views
from dtj_client.ui.feed import Feed
from dtj_client.ui.timeline import timeline
from dtj_client.ui.watch import Watch

_IDLE_S = 30.0  # after the last question of a job's page its pods, Events and logs are no longer read
_KEPT = 5000  # phases and readings of a job


class Cluster:
    """The jobs of a namespace, or of all, kept up to date, and what the page of one job shows.

    kubectl         chooses cluster and namespace
    all_namespaces  whether to show all
    """

    def __init__(self, kubectl: Kubectl, *, all_namespaces: bool) -> None:
        self.namespace = "" if all_namespaces else kubectl.namespace()
        self.context = kubectl.context()
        self._kubectl = kubectl
        within = f"/namespaces/{self.namespace}" if self.namespace else ""
        path = f"/apis/{GROUP}/{VERSION}{within}/distributedtrainingjobs"
        self._jobs = Watch(kubectl, path, changed=self._remember, gone=self._forget)
        self._phases: dict[str, list[tuple[str, str]]] = defaultdict(list)  # by uid
        self._readings: dict[str, list[Reading]] = defaultdict(list)
        self._feeds: dict[str, Feed] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Read the jobs once and watch them. Raises ClientError if they cannot be read."""
        self._jobs.start()
        threading.Thread(target=self._stop_idle, daemon=True).start()

    def stop(self) -> None:
        """Stop reading."""
        self._stopped.set()
        self._jobs.stop()
        with self._lock:
            for feed in self._feeds.values():
                feed.stop()

    def jobs(self, after: int) -> Json | None:
        """All jobs, or None if nothing has changed.

        after  `version` of the last answer; -1 for the first one
        """
        version, found = self._jobs.objects()
        error = self._jobs.problem
        if version == after and error is None:
            return None
        return {
            "version": version,
            "context": self.context,
            "namespace": self.namespace,
            "problem": error and error.message,
            "jobs": [views.row(job) for job in found],
        }

    def job(self, namespace: str, name: str) -> Json:
        """All that the page of a job shows, but its log. Raises LookupError if there is no such job."""
        job, feed = self._open(namespace, name)
        uid, status = job["metadata"]["uid"], job.get("status") or {}
        events = [asdict(each) for each in sorted(map(of_api, feed.events))]
        error, healthy = self._jobs.problem, condition(status, "Healthy")
        slow = healthy.get("message") if healthy.get("reason") in ("Straggler", "Hang") else ""
        kubectl = self._kubectl if self.namespace else self._kubectl.elsewhere(namespace)
        found = {
            "context": self.context,
            "job": views.row(job),
            "message": status.get("message", ""),
            "advice": advice(name + kubectl.chosen, job),
            "attempt": status.get("attempt"),
            "ranks": status.get("worldSize"),
            "goodput": views.goodput(status),
            "timeline": timeline(job, self._phases[uid], events),
            "curves": curves.curves(feed.readings or self._readings[uid]),
            "heat": feed.heat(),
            "slow": slow,
            "failures": views.failures(status),
            "replicas": views.replicas(job, feed.pods),
            "events": events,
            "manifest": views.manifest(job),
            "problem": "; ".join([*([error.message] if error else []), *feed.problems()]),
        }
        return dict(views.printable(found))

    def log(self, namespace: str, name: str, replicas: str, known: str, after: int) -> Json:
        """Lines of a job's log. Raises LookupError if there is no such job, and ClientError.

        replicas  such as 0-3,7; empty: all
        known     `log` of the last answer; empty for the first one
        after     number of the last line in it
        """
        job, feed = self._open(namespace, name)
        chosen = replicas_of(job, parse_indices(replicas) if replicas else None)
        return dict(views.printable(feed.log(chosen, known, after)))

    def _open(self, namespace: str, name: str) -> tuple[Json, Feed]:
        job = self._jobs.get(namespace, name)
        if job is None:
            raise LookupError(f"There is no job {name} in {namespace}; it may have been deleted.")
        uid = job["metadata"]["uid"]
        with self._lock:
            known = self._feeds.get(uid)
            feed = known or self._feeds.setdefault(uid, Feed(self._kubectl.elsewhere(namespace), job))
            feed.used = time.monotonic()
        if known is None:  # a slow cluster must not keep the pages of other jobs waiting
            feed.start()
        return job, feed

    def _remember(self, job: Json) -> None:
        """Keep each phase and each reading that a job's status has had since the start."""
        status, uid = job.get("status") or {}, job["metadata"]["uid"]
        phase = (status.get("phase", ""), status.get("lastTransitionTime", ""))
        if all(phase) and phase not in self._phases[uid][-1:]:
            self._phases[uid] = [*self._phases[uid][-_KEPT:], phase]
        reading = curves.of_status(status)
        if reading is not None and reading not in self._readings[uid][-1:]:
            self._readings[uid] = [*self._readings[uid][-_KEPT:], reading]

    def _forget(self, job: Json) -> None:
        for kept in (self._phases, self._readings):
            kept.pop(job["metadata"]["uid"], None)

    def _stop_idle(self) -> None:
        while not self._stopped.wait(_IDLE_S / 3):
            with self._lock:
                for uid, feed in list(self._feeds.items()):
                    if time.monotonic() - feed.used > _IDLE_S:
                        feed.stop()
                        del self._feeds[uid]
