"""A job on the cluster, with a method for each verb of `kubectl dtj`."""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TypeVar

from dtj_client.errors import ClientError, ForbiddenError, GoneError, Patience, UnansweredError
from dtj_client.kube.kubectl import KIND, Json, Kubectl, container_of, index_of, phase_of, replicas_of
from dtj_client.progress import Progress, ignore
from dtj_client.show import view
from dtj_client.show.events import Event, of_api, of_kubelet
from dtj_client.show.logs import MOST_FOLLOWED, Line, follow_job, of_ranks, snapshot, without_pods
from dtj_client.show.plot import draw
from dtj_client.show.readings import of_lines
from dtj_client.show.report import report, steps
from dtj_client.show.stacks import check_ranks, question, replicas_with, stacks

T = TypeVar("T")
FINAL = ("Succeeded", "Failed")
POLL_S = 2.0
# Reasons of Events that say how a job ended: those of its conditions Complete and Failed.
_SUCCEEDED = ("Completed",)
_FAILED = ("RecoveryRule", "RestartBudgetSpent", "NoProgress", "DeadlineExceeded", "BadSpec")
_TRIES = 3  # the operator sends an Event after the status, and may have deleted the job in between


@dataclass(frozen=True)
class Status:
    """What the operator last wrote about a job.

    phase     such as Running or Succeeded; empty until the operator has seen the job
    message   why
    step      last completed step / total steps; empty if the program reports none
    attempt   increases each time all pods are recreated
    restarts  of all kinds
    failure   the last failure, with the fields of `status.failure`
    """

    phase: str = ""
    message: str = ""
    step: str = ""
    attempt: int = 0
    restarts: int = 0
    failure: Json | None = None


@dataclass(frozen=True)
class Job:
    """One DistributedTrainingJob.

    Each call asks the API server again. All of them raise ClientError, with the reason and how to fix it.

    name      its name in the namespace of `kubectl`
    progress  is called by `logs`, `plot`, `wait` and `stop`: how many pods or steps are done, and of how many
    """

    name: str
    kubectl: Kubectl = field(default_factory=Kubectl, repr=False)
    progress: Progress = field(default_factory=lambda: ignore, repr=False)
    _uids: list[str] = field(default_factory=list, repr=False, compare=False)  # the last one seen
    _over: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)  # ends waits

    @property
    def manifest(self) -> Json:
        """The whole object, with spec and status."""
        found = self.kubectl.job(self.name)
        self._uids[:] = [found.get("metadata", {}).get("uid", "")]
        return found

    @property
    def status(self) -> Status:
        """What the operator last wrote about the job.

        With a ttlSecondsAfterFinished of 0 no one sees a job that has finished: then its Events say how.
        """
        try:
            found = self.manifest.get("status") or {}
        except GoneError as error:
            return self._end(error)
        return Status(
            phase=found.get("phase", ""),
            message=found.get("message", ""),
            step=found.get("step", ""),
            attempt=found.get("attempt", 0),
            restarts=(found.get("restarts") or {}).get("total", 0),
            failure=found.get("failure"),
        )

    def _end(self, gone: GoneError) -> Status:
        """How the job ended that this object has seen. Raises GoneError."""
        for number in range(_TRIES if self._uids else 0):
            time.sleep(POLL_S / 2 if number else 0)
            with contextlib.suppress(ForbiddenError):
                for event in reversed(self._events(self._uids[0])):
                    if event.reason in _SUCCEEDED:
                        return Status(phase="Succeeded")
                    if event.reason in _FAILED:
                        return Status(phase="Failed", message=event.message)
        if self._uids:
            raise GoneError(f"job {self.name} was deleted, and no Event says that it had finished") from gone
        raise gone

    @property
    def phase(self) -> str:
        """Phase of the status."""
        return self.status.phase

    def report(self) -> str:
        """The screen of `kubectl dtj status`: what the job does and why, what failed, what to do."""
        return self._report(self.manifest)

    def _repr_html_(self) -> str:
        """How a notebook shows the job: its state at this moment."""
        try:
            job = self.manifest
            return view.html(job, self._report(job))
        except ClientError as error:
            return view.failed(str(error))

    def _report(self, job: Json) -> str:
        pods = self.kubectl.pods(self.name)
        return "\n".join(
            report(job, pods, datetime.now(UTC), of_kubelet(self.kubectl, pods), self.kubectl.chosen)
        )

    def logs(
        self,
        *,
        follow: bool = False,
        replicas: Collection[int] | None = None,
        ranks: Collection[int] | None = None,
        since: str = "",
        tail: int | None = None,
    ) -> Iterator[Line]:
        """Yield the lines of all replicas in the order of time.

        follow    continue until the job has finished, with pods that replace others; of at most 64 replicas
        replicas  only these
        ranks     only lines of these ranks; the agent, and so `dtj run`, writes the rank before each line
        since     only lines newer than this, such as 10m
        tail      only the last lines of each replica, so many; all of pods that come later
        """
        job = self._first(lambda: self.manifest) if follow else self.manifest
        if ranks is not None:
            present = self.kubectl.pods(self.name)
            check_ranks(job, present, ranks)
            if replicas is None and present and ranks:
                having = replicas_with(present, ranks)
                if having <= set(replicas_of(job, None)):  # else some may be added
                    replicas = having
        chosen = replicas_of(job, None if replicas is None else set(replicas))
        flags = [f"--container={container_of(job)}", *([f"--since={since}"] if since else [])]
        flags += [] if tail is None else [f"--tail={tail}"]
        lines: Iterator[Line]
        if follow:
            if len(chosen) > MOST_FOLLOWED and replicas is not None:
                raise ClientError(
                    f"{len(chosen)} replicas are too many to follow", f"choose at most {MOST_FOLLOWED}"
                )
            lines = follow_job(
                self.kubectl,
                self.name,
                chosen[:MOST_FOLLOWED],
                *flags,
                finished=lambda: self.phase in FINAL,
                with_new=replicas is None,
            )
            if len(chosen) > MOST_FOLLOWED:
                said = f"replicas {MOST_FOLLOWED} to {chosen[-1]} are not followed: --replica chooses others"
                lines = chain([Line("", MOST_FOLLOWED, said)], lines)
        else:
            every = self.kubectl.pods(self.name)
            pods = [pod for pod in every if index_of(pod, self.name) in set(chosen)]
            if every and not pods:
                index = ", ".join(map(str, chosen))
                fix = f"kubectl dtj status {self.name}{self.kubectl.chosen} shows the others"
                raise ClientError(
                    f"there is no pod of replica {index} of job {self.name} at this moment", fix
                )
            if not pods:
                status = job.get("status") or {}
                ran = status.get("startTime") or status.get("attempt")  # a suspension resets the first
                fix = f"kubectl dtj status {self.name}{self.kubectl.chosen} says why"
                if status.get("phase") in FINAL:  # pods that ran on were deleted, as those with a sidecar
                    fix += "; spec.cleanPodPolicy: None keeps the pods of the next run, and their logs"
                raise ClientError(
                    f"job {self.name} has no pods{', and their logs went with them' if ran else ' so far'}",
                    fix,
                )
            found = snapshot(self.kubectl, pods, self.name, *flags, progress=self.progress)
            lines = chain(without_pods(chosen, {index_of(pod, self.name) for pod in pods}), found)
        return lines if ranks is None else of_ranks(lines, set(ranks))

    def events(self) -> list[Event]:
        """What the operator did or found, the oldest first; the cluster keeps Events for an hour or so."""
        return self._events(self.manifest["metadata"]["uid"])

    def _events(self, uid: str) -> list[Event]:
        about = f"--field-selector=involvedObject.uid={uid}"
        return sorted(map(of_api, self.kubectl.items("events", about)))

    def plot(self, target: str | Path) -> int:
        """Draw loss and rate over time into a file such as loss.png; return the number of logged steps.

        Needs matplotlib. The log of a pod that was replaced is lost, and its steps with it.
        """
        found = of_lines(self.logs(replicas={0}))  # where rank 0 is, which logs the steps
        draw(self.manifest, found, Path(target))
        return len(found)

    def stacks(self, ranks: Collection[int] | None = None) -> Iterator[str]:
        """Yield where each rank is at this moment: its number, process and Python stacks.

        ranks  only these

        Needs the right to run a command in the pods, and programs under dtj.
        """
        job, pods = self.manifest, self.kubectl.pods(self.name)
        if not pods:
            fix = f"see kubectl dtj status {self.name}{self.kubectl.chosen}"
            raise ClientError(f"job {self.name} has no pods", fix)
        check_ranks(job, pods, ranks)

        def ask(pod: str, container: str) -> str:
            return self.kubectl.run("exec", pod, "-c", container, "--", "python3", "-c", question())

        return stacks(pods, ranks, ask)

    def wait(self, timeout: float | None = None) -> str:
        """Wait until the job has finished and return its phase. Raises TimeoutError after `timeout` s."""
        ends = None if timeout is None else time.monotonic() + timeout
        found, patience = self._first(lambda: self.status, ends), Patience()
        while found.phase not in FINAL:
            done, total = steps(found.step)
            if total:
                self.progress(done, total)
            self._sleep(ends, f"{self.name}: {found.phase or 'not started'} after {timeout or 0:.0f} s")
            with patience.forgiving():
                found = self.status
        return found.phase

    def suspend(self) -> None:
        """Stop the pods, which save a checkpoint if the program can; the job stays."""
        self._change({"suspend": True})

    def resume(self) -> None:
        """Start the pods of a suspended job."""
        self._change({"suspend": False})

    def scale(self, replicas: int) -> None:
        """Change the number of replicas of an elastic job."""
        self._change({"replicas": replicas})

    def stop(self, timeout: float | None = None) -> None:
        """Let the pods save a checkpoint and end, then delete the job.

        Raises TimeoutError after `timeout` seconds; the job is then suspended.
        """
        is_suspended = self.phase not in FINAL
        if is_suspended:
            self.suspend()
        ends = None if timeout is None else time.monotonic() + timeout
        with self._saying_that_it_stays(is_suspended):
            patience = Patience(over=self._over)
            pods = running = patience.ask(self.running_pods, ends)
            while running:
                self.progress(pods - running, pods)
                self._sleep(ends, f"{self.name}: {running} pods still run")
                with patience.forgiving():
                    running = self.running_pods()
            with contextlib.suppress(GoneError):  # an earlier question may have had its effect
                patience.ask(self.delete, ends)

    def running_pods(self) -> int:
        """Return how many pods have not ended."""
        return sum(phase_of(pod) not in FINAL for pod in self.kubectl.pods(self.name))

    def delete(self) -> None:
        """Delete the job with its pods and their logs; checkpoints stay."""
        self.kubectl.delete(KIND, self.name)

    def _change(self, spec: Json) -> None:
        self.kubectl.patch(KIND, self.name, {"spec": spec})

    def _first(self, question: Callable[[], T], ends: float | None = None) -> T:
        """The first of many answers: an API server that has too much to do is asked again."""
        return Patience(kind=UnansweredError, over=self._over).ask(question, ends)

    def _sleep(self, ends: float | None, message: str) -> None:
        """Wait for the next poll. Raises TimeoutError with the message once the time is over."""
        left = POLL_S if ends is None else ends - time.monotonic()
        if left <= 0 or self._over.wait(min(POLL_S, left)):
            raise TimeoutError(message)

    @contextlib.contextmanager
    def _saying_that_it_stays(self, is_suspended: bool) -> Iterator[None]:
        """Add to the error for which a job is not deleted that it is suspended."""
        try:
            yield
        except TimeoutError as error:
            if not is_suspended:
                raise
            raise TimeoutError(f"{error}; job {self.name} is suspended") from error
        except ClientError as error:
            if not is_suspended:
                raise
            name = f"{self.name}{self.kubectl.chosen}"
            fix = f"kubectl dtj delete {name}; or kubectl dtj resume {name}, which starts it again"
            said = f"{error.message}; job {self.name} is suspended and was not deleted"
            raise type(error)(said, fix) from error
