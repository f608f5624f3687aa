"""The logs of all replicas of a job as one."""

import heapq
import io
import queue
import re
import subprocess
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dtj_client.errors import ClientError, ForbiddenError, Patience, SilentNodeError
from dtj_client.kubectl import JOB_LABEL, Json, Kubectl, index_of
from dtj_client.progress import Progress, ignore

_TIME = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))(?: |$)")
_RANK = re.compile(r'\[rank (\d+)\] |\{"rank": (\d+)')  # written by the agent in a pod
AT_ONCE = 8  # logs that are read at the same time
MOST_FOLLOWED = 64  # logs; each takes a process of kubectl with some 40 MB
NEXT_POD_S = 1.0  # between two looks for the pod that replaces one, or for more of its log
LOOK_S = 5.0  # the same while the logs of all replicas are read: some may be added
TRIES = 5  # for the log of an ended pod; its node may be gone
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


def parse(replica: int, lines: Iterable[str]) -> Iterator[Line]:
    """Yield the lines of `kubectl logs --timestamps`.

    A progress bar draws its line again after a carriage return: each drawing becomes a line, as it does under
    dtj. A line without a time, such as the kubelet's about a log that it does not have, has that of the line
    before.
    """
    at = ""
    for raw in lines:
        text = raw.rstrip("\r\n")
        if found := _TIME.match(text):
            at, text = utc(found["at"]), text[found.end() :]
        elif not text:
            continue
        for part in [each for each in text.split("\r") if each] or [""]:
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
    """Yield what the pods have written so far; a pod whose container has not started has nothing."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - 12 ms that no other verb needs

    def read(pod: Json) -> list[Line]:
        try:
            said = kubectl.run("logs", pod["metadata"]["name"], "--timestamps", *flags)
        except SilentNodeError as error:  # the logs of the other pods are there
            return [Line("", index_of(pod, job), f"no log: {error.message}")]
        except ClientError as error:
            if any(text in error.message for text in _NO_LOG):
                return []
            raise
        return list(parse(index_of(pod, job), said.split("\n")))

    found: list[list[Line]] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for lines in pool.map(read, pods):
            found.append(lines)
            progress(len(found), len(pods))
    return merge(found)


def follow_job(
    kubectl: Kubectl,
    job: str,
    replicas: Sequence[int],
    *flags: str,
    finished: Callable[[], bool],
    with_new: bool = False,
) -> Generator[Line, None, None]:
    """Yield lines as they come, also of pods that replace others, until the job has finished.

    flags      for kubectl logs
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
    _processes: set["subprocess.Popen[bytes]"] = field(default_factory=set)
    _read: set[str] = field(default_factory=set)  # uids of pods whose logs are read at this moment
    _newest: dict[str, str] = field(default_factory=dict)  # time of the last line by uid of the pod
    _left: dict[str, int] = field(default_factory=dict)  # by uid: how often a log may be asked for again

    def end(self) -> None:
        """End the threads, and their processes: a quiet log would keep them."""
        self._is_over.set()
        self._has_changed.set()
        for each in tuple(self._processes):
            each.kill()

    def run(self) -> None:
        """Look for pods until the job is over and all logs were read."""
        patience, over = Patience(), False
        try:
            while not self._is_over.is_set():
                with patience.forgiving():
                    over = self.finished()
                    begun = [self._begin(*pod, over=over) for pod in self._pods()]
                    if over and not self._read and not any(begun):
                        break
                is_complete = len(self._read) >= len(self.replicas)
                self._has_changed.wait(LOOK_S if is_complete and not over else NEXT_POD_S)
                self._has_changed.clear()
        except Exception as error:  # noqa: BLE001 - any other: the reader would wait forever
            self.lines.put(error)
        self.lines.put(None)

    def _pods(self) -> Iterator[tuple[int, str, str]]:
        """Yield index, uid and phase of each pod that has begun.

        A pod that ends soon after its init containers can be Pending and have an exit code.
        """
        code = "{.status.containerStatuses[*].state.terminated.exitCode}"
        fields = "{.metadata.name} {.metadata.uid} {.status.phase} " + code
        fields = f'{{range .items[*]}}{fields}{{"\\n"}}{{end}}'
        words = ("get", "pods", f"--selector={JOB_LABEL}={self.job}", "-o", f"jsonpath={fields}")
        for line in self.kubectl.run(*words).splitlines():
            name, uid, phase, *codes = f"{line} ".split(" ")
            index = name.removeprefix(f"{self.job}-")
            if not index.isdecimal():
                continue
            is_new = self.with_new and int(index) < MOST_FOLLOWED
            chosen = is_new or int(index) in self.replicas
            if chosen and (phase not in ("", "Pending") or any(codes)):
                yield int(index), uid, phase

    def _begin(self, index: int, uid: str, phase: str, *, over: bool) -> bool:
        """Read a pod's log in a thread, unless it was read; return whether it was not."""
        if uid in self._read or not self._left.setdefault(uid, TRIES):
            return False
        self._read.add(uid)
        is_last = over or phase in _ENDED
        threading.Thread(target=self._keep, args=(index, uid, is_last), daemon=True).start()
        return True

    def _keep(self, index: int, uid: str, is_last: bool) -> None:
        """Read a pod's log once."""
        try:
            is_whole = self._pod(f"{self.job}-{index}", index, uid)
            if is_last:
                self._left[uid] = 0 if is_whole else self._left[uid] - 1
            if not (is_last and is_whole):
                self._is_over.wait(NEXT_POD_S)  # before it is read on
        except Exception as error:  # noqa: BLE001 - as above
            self.lines.put(error)
        self._read.discard(uid)
        self._has_changed.set()

    def _pod(self, pod: str, index: int, uid: str) -> bool:
        """Follow a pod until its log or the connection ends; return whether kubectl is content."""
        flags, after = self.flags, self._newest.get(uid, "")
        if after:  # in whole seconds: some lines come again
            flags = [f"--since-time={after}", *(each for each in flags if not each.startswith("--since"))]
        words = ("logs", pod, "--timestamps", "--follow", *flags)
        with self.kubectl.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            self._processes.add(process)
            if self._is_over.is_set():
                process.kill()
            # A carriage return does not end a line here, as it would without `newline`.
            lines = io.TextIOWrapper(process.stdout, encoding="utf-8", errors="replace", newline="\n")
            for line in parse(index, lines):
                if line.at > after:
                    self._newest[uid] = line.at
                    self.lines.put(line)
            said = process.stderr.read()
        self._processes.discard(process)
        if process.returncode:
            error = self.kubectl.error(said)
            if isinstance(error, ForbiddenError) or error.message.startswith("invalid argument"):
                raise error
        return process.returncode == 0
