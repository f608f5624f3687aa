"""The logs of all replicas of a job as one."""

import heapq
import io
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dtj_client.errors import ClientError, ForbiddenError, Patience, SilentNodeError, UnreachableError
from dtj_client.kube.kubectl import Json, Kubectl, index_of, phase_of, selector
from dtj_client.progress import Progress, ignore
from dtj_client.show.report import failed_init

_TIME = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))(?: |$)")
_RANK = re.compile(r'\[rank (\d+)\] |\{"rank": (\d+)')  # written by the agent in a pod
AT_ONCE = 8  # logs that are read at the same time
MOST_NAMED = 8  # of replicas without a pod
MOST_FOLLOWED = 64  # logs; each takes a process of kubectl with some 40 MB
NEXT_POD_S = 1.0  # between two looks for the pod that replaces one, or for more of its log
LOOK_S = 5.0  # the same while the logs of all replicas are read: some may be added
TRIES = 5  # for the log of an ended pod; its node may be gone
STAYS_S = 5.0  # a pod that still runs so long after the end of its job is left alone by the operator
_OF_THE_NODE = "prevented the request from succeeding"  # HTTP 500, which may be the kubelet's own
_NO_LOG = ("waiting to start", "ContainerCreating", '" not found')  # so far, or any more
_ENDED = ("Succeeded", "Failed")  # phases of a pod


@dataclass(frozen=True, order=True)
class Line:
    """One line of a pod's log; `at` is the kubelet's time in RFC 3339, which sorts as text."""

    at: str
    replica: int
    text: str

    @property
    def rank(self) -> int | None:
        """The rank that the agent wrote before the line; None: none."""
        named = _RANK.match(self.text)
        return int(named[1] or named[2]) if named else None

    def __str__(self) -> str:
        return f"{self.replica}| {self.text}"


def parse(replica: int, lines: Iterable[str], *, drawings: bool = True) -> Iterator[Line]:
    """Yield the lines of `kubectl logs --timestamps`.

    A progress bar draws its line again after a carriage return: each drawing becomes a line, as it does under
    dtj. A line without a time, such as the kubelet's about a log that it does not have, has that of the line
    before.

    drawings  False: of a progress bar only the last state
    """
    at = ""
    for raw in lines:
        text = raw.rstrip("\r\n")
        if found := _TIME.match(text):
            at, text = utc(found["at"]), text[found.end() :]
        elif not text:
            continue
        parts = [each for each in text.split("\r") if each] or [""]
        for part in parts if drawings else parts[-1:]:
            yield Line(at, replica, part)


def utc(at: str) -> str:
    """The time as all nodes write it that are set to UTC, so that times sort as text."""
    return at if at.endswith("Z") else f"{datetime.fromisoformat(at).astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def merge(logs: Iterable[Iterable[Line]]) -> Iterator[Line]:
    """Yield the lines of all replicas in the order of their times."""
    return heapq.merge(*logs)


def of_ranks(lines: Iterable[Line], ranks: Set[int]) -> Iterator[Line]:
    """The lines of these ranks; lines that name no rank, such as the agent's own, are left out."""
    return (line for line in lines if line.rank in ranks)


def snapshot(
    kubectl: Kubectl, pods: Sequence[Json], job: str, *flags: str, progress: Progress = ignore
) -> Iterator[Line]:
    """Yield what the pods have written so far; a pod whose container has not started has nothing.

    Of a pod with an init container that failed it is the log of that one, behind a line with its name.
    Raises ClientError for an error that all pods have.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - 12 ms that no other verb needs

    unanswered: list[UnreachableError] = []

    def read(pod: Json) -> list[Line]:
        index, named, of_init = index_of(pod, job), *_of_init(pod, job)
        try:
            said = kubectl.run("logs", pod["metadata"]["name"], "--timestamps", *flags, *of_init)
        except ClientError as error:
            if _is_about_all(error):
                raise
            if isinstance(error, UnreachableError):
                unanswered.append(error)
            return _no_log(index, error)
        return [*named, *parse(index, said.split("\n"))]

    found: list[list[Line]] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for lines in pool.map(read, pods):
            found.append(lines)
            progress(len(found), len(pods))
    if unanswered and len(unanswered) == len(pods):
        raise unanswered[0]
    return merge(found)


def _of_init(pod: Json, job: str) -> tuple[list[Line], list[str]]:
    """Of a pod with an init container that failed: the line above its log, and the option that chooses it."""
    if not (init := failed_init(pod)):
        return [], []
    # Of two options --container the last one counts.
    return [Line("", index_of(pod, job), f"log of init container {init}:")], [f"--container={init}"]


def _has_begun(pod: Json) -> bool:
    """Also a pod that ended soon after its init containers: it can be Pending and have an exit code."""
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    has_ended = any("terminated" in (each.get("state") or {}) for each in containers)
    return has_ended or phase_of(pod) not in ("", "Pending")


def _is_about_all(error: ClientError) -> bool:
    """Whether each pod would have this error."""
    is_refusal = isinstance(error, ForbiddenError | UnreachableError)
    return (is_refusal and _OF_THE_NODE not in error.message) or error.message.startswith("invalid argument")


def without_pods(replicas: Iterable[int], present: Container[int]) -> list[Line]:
    """What to show in place of the logs of replicas without a pod; a finished job may have deleted some."""
    absent = [replica for replica in replicas if replica not in present]
    if not absent:
        return []
    more = f" and {len(absent) - MOST_NAMED} more" if len(absent) > MOST_NAMED else ""
    named = ", ".join(map(str, absent[:MOST_NAMED]))
    return [Line("", absent[0], f"no log of replica {named}{more}: no pod at this moment")]


def _no_log(replica: int, error: ClientError) -> list[Line]:
    """What to show in place of a pod's log; nothing if there cannot be one."""
    has_none = any(text in error.message for text in _NO_LOG)
    return [] if has_none else [Line("", replica, f"no log: {error.message}")]


def follow_job(
    kubectl: Kubectl,
    job: str,
    replicas: Sequence[int],
    *flags: str,
    finished: Callable[[], bool],
    with_new: bool = False,
) -> Generator[Line, None, None]:
    """Yield lines as they come, also of pods that replace others, until the job has finished.

    flags      for kubectl logs; --tail is about the pods that are there now
    finished   whether the job is over, so that no further pod comes
    with_new   also of replicas that are added meanwhile
    """
    following = _Following(kubectl, job, replicas, flags, finished, with_new)
    threading.Thread(target=following.run, daemon=True).start()
    try:
        while (line := following.lines.get()) is not None:
            if isinstance(line, Exception):
                raise line
            yield line
    finally:
        following.end()


@dataclass
class _Following:
    """Reads the logs of the pods, each in a thread; one more thread looks for pods.

    lines  of all replicas; None: there are no more, an error: nor are there after it
    """

    kubectl: Kubectl
    job: str
    replicas: Sequence[int]
    flags: Sequence[str]
    finished: Callable[[], bool]
    with_new: bool
    lines: "queue.Queue[Line | Exception | None]" = field(default_factory=queue.Queue)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _has_changed: threading.Event = field(default_factory=threading.Event)  # a log or everything has ended
    _processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)  # by uid of the pod
    _first: set[str] | None = None  # uids of the pods of the first look
    _read: set[str] = field(default_factory=set)  # uids of pods whose logs are read at this moment
    _newest: dict[str, str] = field(default_factory=dict)  # time of the last line by uid of the pod
    _left: dict[str, int] = field(default_factory=dict)  # by uid: how often a log may be asked for again
    _stays: set[str] = field(default_factory=set)  # uids of pods that run on after the end of the job
    _silent: set[str] = field(default_factory=set)  # uids of pods of which a line says why there is no log

    def end(self) -> None:
        """End the threads, and their processes: a quiet log would keep them."""
        self._is_over.set()
        self._has_changed.set()
        for each in tuple(self._processes.values()):
            each.kill()

    def run(self) -> None:
        """Look for pods until the job is over and all logs were read."""
        patience, over_since = Patience(), None
        try:
            while not self._is_over.is_set():
                with patience.forgiving():
                    over = self.finished()
                    over_since = (over_since or time.monotonic()) if over else None
                    pods = self._pods()
                    if self._first is None:
                        self._first = {pod["metadata"]["uid"] for pod in pods}
                    if over_since and time.monotonic() >= over_since + STAYS_S:
                        self._leave(pods)
                    reads = bool(self._read)  # a log that ends from here on may have to be read once more
                    begun = [self._begin(pod, over=over) for pod in pods]
                    if over and not reads and not any(begun):
                        break
                is_complete = len(self._read) >= len(self.replicas)
                self._has_changed.wait(LOOK_S if is_complete and not over_since else NEXT_POD_S)
                self._has_changed.clear()
        except Exception as error:  # noqa: BLE001 - any other: the reader would wait forever
            self.lines.put(error)
        self.lines.put(None)

    def _pods(self) -> list[Json]:
        """The pods that have begun."""
        followed = {*self.replicas, *(range(MOST_FOLLOWED) if self.with_new else ())}
        found = self.kubectl.labelled("pods", selector(self.job, followed))
        return [pod for pod in found if index_of(pod, self.job) >= 0 and _has_begun(pod)]

    def _begin(self, pod: Json, *, over: bool) -> bool:
        """Read a pod's log in a thread, unless it was read; return whether it was not."""
        uid = pod["metadata"]["uid"]
        if uid in self._read or not self._left.setdefault(uid, TRIES):
            return False
        self._read.add(uid)
        is_last = over or phase_of(pod) in _ENDED
        threading.Thread(target=self._keep, args=(pod, uid, is_last), daemon=True).start()
        return True

    def _leave(self, pods: Iterable[Json]) -> None:
        """Follow the pods no longer that run on after the end of the job: with cleanPodPolicy None."""
        for pod in pods:
            uid, is_deleted = pod["metadata"]["uid"], "deletionTimestamp" in pod["metadata"]
            if phase_of(pod) == "Running" and not is_deleted and uid not in self._stays:
                self._stays.add(uid)
                if process := self._processes.get(uid):
                    process.kill()

    def _keep(self, pod: Json, uid: str, is_last: bool) -> None:
        """Read a pod's log once."""
        try:
            error = self._pod(pod, uid)
            if is_last:
                self._left[uid] = 0 if error is None else self._left[uid] - 1
            if isinstance(error, SilentNodeError) or (error and not self._left[uid]):
                self._say_why(uid, index_of(pod, self.job), error)
            if not is_last or error:
                self._is_over.wait(NEXT_POD_S)  # before it is read on
        except Exception as error:  # noqa: BLE001 - as above
            self.lines.put(error)
        self._read.discard(uid)
        self._has_changed.set()

    def _say_why(self, uid: str, index: int, error: ClientError) -> None:
        if uid not in self._silent:
            self._silent.add(uid)
            for line in _no_log(index, error):
                self.lines.put(line)

    def _pod(self, pod: Json, uid: str) -> ClientError | None:
        """Follow a pod until its log or the connection ends; return what kubectl complains about.

        A pod that stays is read, not followed.
        """
        index, named, of_init = index_of(pod, self.job), *_of_init(pod, self.job)
        flags, after = [*self.flags, *of_init], self._newest.get(uid, "")
        if after or uid not in (self._first or ()):
            flags = [each for each in flags if not each.startswith("--tail")]
        if after:  # in whole seconds: some lines come again
            flags = [f"--since-time={after}", *(each for each in flags if not each.startswith("--since"))]
        words = (
            "logs",
            pod["metadata"]["name"],
            "--timestamps",
            *([] if uid in self._stays else ["--follow"]),
            *flags,
        )
        with self.kubectl.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            self._processes[uid] = process
            if self._is_over.is_set() or (uid in self._stays and "--follow" in words):
                process.kill()
            # A carriage return does not end a line here, as it would without `newline`.
            lines = io.TextIOWrapper(process.stdout, encoding="utf-8", errors="replace", newline="\n")
            for line in parse(index, lines):
                if line.at > after:
                    for each in () if uid in self._newest else named:
                        self.lines.put(each)
                    self._newest[uid] = line.at
                    self.lines.put(line)
            said = process.stderr.read()
        del self._processes[uid]
        if not process.returncode:
            return None
        error = self.kubectl.error(said)
        if _is_about_all(error) and not isinstance(error, UnreachableError):
            raise error
        return error
