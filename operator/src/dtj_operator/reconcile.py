"""One reconcile: gather, plan, apply, a status patch, Events. The only module that orders this I/O.

A decision that was written to the status is acted on in the next step of the same reconcile.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from dtj_operator import job_metrics, metrics
from dtj_operator.apply import Applied, Applier
from dtj_operator.engine.worker import TryLater
from dtj_operator.gather import Gatherer
from dtj_operator.kube.cache import PodCache
from dtj_operator.kube.errors import ApiError, Conflict, NotFound, Refused
from dtj_operator.kube.jobs import Jobs, TooLargeError
from dtj_operator.kube.recorder import Recorder
from dtj_operator.model import names, private
from dtj_operator.model.json import Json
from dtj_operator.model.memory import RECOVERING, RUNNING
from dtj_operator.model.names import Key
from dtj_operator.model.times import soonest
from dtj_operator.plan.actions import CreatePod, DeleteJob, Verdict
from dtj_operator.plan.isolation import witnesses
from dtj_operator.plan.planner import plan, plan_gone
from dtj_operator.plan.report import pace
from dtj_operator.plan.report.decisions import decision_line
from dtj_operator.plan.report.status import events, new_status
from dtj_operator.plan.snapshot import Gone, Snapshot
from dtj_operator.progress import Poller

STEPS_S = 10.0  # no further step of a reconcile begins later: another job may need the worker

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """The end of one step of a reconcile.

    again_s  seconds until the next reconcile if no step follows; None: only an event can change anything
    job      the job as it is now, if the next step can be taken at once
    """

    again_s: float | None = None
    job: Json | None = None


class Reconciler:
    """Brings one job closer to its spec; called by the workers, one call per job at a time."""

    def __init__(
        self,
        jobs: Jobs,
        cache: PodCache,
        gatherer: Gatherer,
        applier: Applier,
        recorder: Recorder,
        poller: Poller,
        *,
        may_act: Callable[[], bool],
    ) -> None:
        self._jobs, self._cache, self._gatherer, self._applier = jobs, cache, gatherer, applier
        self._recorder, self._poller, self._may_act = recorder, poller, may_act
        self._written: dict[Key, float] = {}  # when this process last wrote the status
        self._behind: dict[Key, float] = {}  # since when a change other than progress is not written yet

    async def __call__(self, key: Key) -> float | None:
        """Return the seconds until the next reconcile, or None if only an event can change anything."""
        if not self._may_act():
            raise TryLater("this process may no longer hold the lease")
        try:
            return await self._bring_closer(key)
        except RecursionError:
            note = "a field of spec.template is nested too deeply to be read; remove it"
            self._warn(key, await self._jobs.uid(key), "TooDeep", note)
            raise
        except TooLargeError as error:
            self._warn(key, await self._jobs.uid(key), "TooLarge", str(error))
            raise TryLater(str(error)) from None

    def _warn(self, key: Key, uid: str, reason: str, note: str) -> None:
        """Send an Event about a job whose status cannot say it."""
        self._recorder.record(_regarding(key, uid), kind="Warning", reason=reason, note=note, once_per="")

    async def _bring_closer(self, key: Key) -> float | None:
        """Take steps until the cluster has to react: no replacement waits in the queue between them."""
        job: Json | None = None
        until = asyncio.get_running_loop().time() + STEPS_S
        while True:
            found = await self._gatherer.gather(key, job)
            if found is None:
                job_metrics.JOBS.forget(key)
                return None
            if isinstance(found, Gone):
                return await self._clean_up(key, found)
            step = await self._take_step(key, *found)
            if step.job is None or asyncio.get_running_loop().time() >= until:
                return step.again_s
            job = step.job

    async def _clean_up(self, key: Key, gone: Gone) -> float | None:
        """Delete what a deleted job left; return the seconds until the next reconcile."""
        self._written.pop(key, None)
        self._behind.pop(key, None)
        job_metrics.JOBS.forget(key)
        decision = plan_gone(gone)
        outcome = await self._applier.apply(key, "", decision.actions)
        _insist(outcome)
        if outcome.unfinished:
            return 0.0
        return _seconds_until(decision.requeue_at, gone.now)

    async def _take_step(self, key: Key, s: Snapshot, job: Json) -> _Step:
        decision = plan(s)
        outcome = await self._applier.apply(key, s.job.uid, decision.actions)
        ends_job = DeleteJob() in decision.actions
        if ends_job:
            _log.info("decided", extra={"decision": "DeleteJob", "reason": "ttlSecondsAfterFinished"})
        after = s.after(self._cache.of(key), decision.refusal or outcome.refusal)
        status = new_status(after, decision.verdict)
        if s.job.deleting or ends_job:
            self._poller.forget(key)
            write_at = None
            if not ends_job:  # a finalizer keeps it, and the user has to see why
                job_metrics.JOBS.saw(key, after, status)
                write_at, _ = await self._write(key, after, None, status, job, begun=False)
            _insist(outcome)
            again_at = s.now if outcome.unfinished else soonest(decision.requeue_at, write_at)
            return _Step(again_s=_seconds_until(again_at, s.now))
        self._ask_agent(key, after, status)
        complete = not (outcome.refusal or outcome.unfinished or outcome.blocked)
        job_metrics.JOBS.saw(key, after, status)
        begun = complete and any(isinstance(action, CreatePod) for action in decision.actions)
        write_at, written = await self._write(key, after, decision.verdict, status, job, begun=begun)
        again_s = _seconds_until(soonest(decision.requeue_at, write_at), s.now)
        if outcome.refusal or outcome.blocked:
            why = outcome.refusal.message if outcome.refusal else "old objects of the job still exist"
            raise TryLater(why, within_s=again_s)  # the back-off must not delay a deadline
        if decision.verdict is not None:
            return _Step(again_s=0.0, job=written)
        # The status now has values that the next decision depends on, and no event will trigger a reconcile.
        if outcome.unfinished or (write_at is None and _affects_decisions(s, status)):
            return _Step(again_s=0.0)
        deleted = decision.deleted_pods
        if deleted and deleted.isdisjoint(pod.uid for pod in after.pods):  # their names are free
            return _Step(again_s=0.0, job=written or job)
        return _Step(again_s=again_s)

    async def _write(
        self, key: Key, s: Snapshot, verdict: Verdict | None, status: Json, job: Json, *, begun: bool
    ) -> tuple[float | None, Json | None]:
        """Write the status if it is due; return when it will be due otherwise, and the job as written."""
        stored = s.memory.restored or s.memory.raw
        due = pace.write_at(
            stored,
            status,
            now=s.now,
            last_write=self._written.get(key, 0.0),
            progress_due=self._poller.may_write(key),
            stale_since=self._behind.get(key),
            pods_created=begun,
        )
        if pace.only_progress(stored, status):
            self._behind.pop(key, None)
        else:
            self._behind.setdefault(key, s.now)
        if due is None or due > s.now:
            if stored.get("progress") == status.get("progress"):
                self._poller.note_written(key, s.answer)
            return due, None
        version, patch = job["metadata"]["resourceVersion"], pace.merge_patch(stored, status)
        try:
            answer = await self._jobs.write_status(key, version, patch)
        except NotFound:
            return s.now, None
        except ApiError as error:
            metrics.STATUS_WRITE_FAILURES.labels(str(error.status)).inc()
            if isinstance(error, Conflict):
                raise TryLater("the job changed during the reconcile") from error
            if isinstance(error, Refused):  # as of a job that an earlier schema accepted
                note = f"the API server does not store the job's status: {error.message}"
                self._warn(key, s.job.uid, "StatusRefused", note)
            raise
        self._written[key] = s.now
        self._behind.pop(key, None)
        self._poller.note_written(key, s.answer)
        self._announce(key, s, verdict, status)
        return None, answer

    def _announce(self, key: Key, s: Snapshot, verdict: Verdict | None, status: Json) -> None:
        """Send Events, count metrics and log one line, after the status was written."""
        regarding = _regarding(key, s.job.uid)
        for event in events(s, verdict, status):
            self._recorder.record(
                regarding, kind=event.type, reason=event.reason, note=event.note, once_per=event.once_per
            )
        job_metrics.JOBS.wrote(key, s, verdict, status)
        decided = decision_line(s, verdict, status)
        if decided is not None:
            _log.info("decided", extra=decided)

    def _ask_agent(self, key: Key, s: Snapshot, status: Json) -> None:
        pod = s.current.get(0)
        trains = status.get("phase") in (RUNNING, RECOVERING)
        if trains and pod is not None and pod.address and pod.phase == "Running":
            self._poller.follow(
                key,
                s.job.uid,
                s.memory.attempt,
                pod.address,
                ranks=s.job.max_replicas * s.job.processes,
                has_answered=s.has_answered,
                others={each.index: each.address for each in witnesses(s)},
            )
        else:
            self._poller.stop(key)


def _insist(outcome: Applied) -> None:
    """Try again what was refused about a job that has no status to say it, or changed meanwhile."""
    if outcome.refusal:
        _log.warning("the API server refuses a deletion", extra={"error": outcome.refusal.message})
    if outcome.refusal or outcome.blocked:
        raise TryLater("not all objects of the job could be deleted")


def _seconds_until(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, at - now)


def _regarding(key: Key, uid: str) -> Json:
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "uid": uid} | key._asdict()


def _affects_decisions(s: Snapshot, status: Json) -> bool:
    """Whether the status changes a field on which the next decision about a deadline or the size depends."""
    if s.job.deadline_s is not None and s.memory.raw.get("startTime") != status.get("startTime"):
        return True
    return s.memory.private.wanted_replicas != private.read(status).wanted_replicas
