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

from dtj_client.errors import ClientError, ForbiddenError, Patience
from dtj_client.kubectl import Json, Kubectl, index_of
from dtj_client.progress import Progress, ignore

_TIME = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))(?: |$)")
_RANK = re.compile(r'\[rank (\d+)\] |\{"rank": (\d+)')  # written by the agent in a pod
AT_ONCE = 8  # logs that are read at the same time
NEXT_POD_S = 1.0  # between two looks for the pod that replaces one, or for more of its log
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
    kubectl: Kubectl, job: str, replicas: Sequence[int], *flags: str, finished: Callable[[], bool]
) -> Generator[Line, None, None]:
    """Yield lines as they come, also of pods that replace others, until the job has finished.

    flags      for kubectl logs
    finished   whether the job is over, so that no further pod comes
    """
    following = _Following(kubectl, job, flags, finished)
    for replica in replicas:
        threading.Thread(target=following.replica, args=(replica,), daemon=True).start()
    left = len(replicas)
    try:
        while left:
            line = following.lines.get()
            if isinstance(line, ClientError):
                raise line
            if line is None:
                left -= 1
            else:
                yield line
    finally:
        following.end()


@dataclass
class _Following:
    """Reads the logs of the replicas, each in a thread.

    lines  of all replicas; None: a replica has no more, an error: nor has any other
    """

    kubectl: Kubectl
    job: str
    flags: Sequence[str]
    finished: Callable[[], bool]
    lines: "queue.Queue[Line | ClientError | None]" = field(default_factory=queue.Queue)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _processes: set["subprocess.Popen[bytes]"] = field(default_factory=set)

    def end(self) -> None:
        """End the threads, and their processes: a quiet log would keep them."""
        self._is_over.set()
        for each in tuple(self._processes):
            each.kill()

    def replica(self, index: int) -> None:
        """Follow one pod after the other of a replica."""
        pod = f"{self.job}-{index}"
        fields = ("--ignore-not-found", "-o", "jsonpath={.metadata.uid} {.status.phase}")
        newest: dict[str, str] = {}  # time of the last line by uid of the pod
        left: dict[str, int] = {}  # by uid: how often an ended pod's log may be asked for; 0: it was read
        patience = Patience()
        try:
            while not self._is_over.is_set():
                with patience.forgiving():
                    over = self.finished()
                    uid, _, phase = self.kubectl.run("get", "pod", pod, *fields).partition(" ")
                    if uid and left.setdefault(uid, TRIES) and phase not in ("", "Pending"):
                        is_whole = self._pod(pod, index, uid, newest)
                        if over or phase in _ENDED:
                            left[uid] = 0 if is_whole else left[uid] - 1
                            continue  # a further pod may be there
                    elif over:
                        return
                self._is_over.wait(NEXT_POD_S)
        except ClientError as error:
            self.lines.put(error)
        finally:
            self.lines.put(None)

    def _pod(self, pod: str, index: int, uid: str, newest: dict[str, str]) -> bool:
        """Follow a pod until its log or the connection ends; return whether kubectl is content.

        newest   by uid: only lines after this time; none: those that the flags choose
        """
        flags, after = self.flags, newest.get(uid, "")
        if after:  # in whole seconds: some lines come again
            flags = [f"--since-time={after}", *(each for each in flags if not each.startswith("--since"))]
        command = self.kubectl.command("logs", pod, "--timestamps", "--follow", *flags)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            self._processes.add(process)
            if self._is_over.is_set():
                process.kill()
            # A carriage return does not end a line here, as it would without `newline`.
            lines = io.TextIOWrapper(process.stdout, encoding="utf-8", errors="replace", newline="\n")
            for line in parse(index, lines):
                if line.at > after:
                    newest[uid] = line.at
                    self.lines.put(line)
            said = process.stderr.read()
        self._processes.discard(process)
        if process.returncode:
            error = self.kubectl.error(said)
            if isinstance(error, ForbiddenError) or error.message.startswith("invalid argument"):
                raise error
        return process.returncode == 0
