"""The logs of all replicas of a job as one."""

import heapq
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from dtj_client.errors import ClientError
from dtj_client.kubectl import Json, Kubectl, index_of
from dtj_client.progress import Progress, ignore

_RANK = re.compile(r'\[rank (\d+)\] |\{"rank": (\d+)')  # written by the agent in a pod
AT_ONCE = 8  # logs that are read at the same time
NEXT_POD_S = 1.0  # between two looks for the pod that replaces one, or for more of its log
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
    """Yield the lines of `kubectl logs --timestamps`."""
    for raw in lines:
        at, _, text = raw.rstrip("\n").partition(" ")
        yield Line(at, replica, text)


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
            if "waiting to start" in error.message or "ContainerCreating" in error.message:
                return []
            raise
        return list(parse(index_of(pod, job), said.splitlines()))

    found: list[list[Line]] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for lines in pool.map(read, pods):
            found.append(lines)
            progress(len(found), len(pods))
    return merge(found)


def follow_job(
    kubectl: Kubectl, job: str, replicas: Sequence[int], *flags: str, finished: Callable[[], bool]
) -> Iterator[Line]:
    """Yield lines as they come, also of pods that replace others, until the job has finished.

    flags      for kubectl logs
    finished   whether the job is over, so that no further pod comes
    """
    lines: queue.Queue[Line | None] = queue.Queue()
    stop = threading.Event()
    for replica in replicas:
        arguments = (kubectl, job, replica, lines, stop, finished, flags)
        threading.Thread(target=_follow_replica, args=arguments, daemon=True).start()
    left = len(replicas)
    try:
        while left:
            line = lines.get()
            if line is None:
                left -= 1
            else:
                yield line
    finally:
        stop.set()


def _follow_replica(
    kubectl: Kubectl,
    job: str,
    replica: int,
    lines: "queue.Queue[Line | None]",
    stop: threading.Event,
    finished: Callable[[], bool],
    flags: Sequence[str],
) -> None:
    """Follow one pod after the other of a replica; the last item is None."""
    read: set[str] = set()  # uids of pods whose logs were read to the end
    newest: dict[str, str] = {}  # time of the last line by uid
    try:
        while not stop.is_set():
            over = finished()
            found = kubectl.run(
                "get",
                "pod",
                f"{job}-{replica}",
                "--ignore-not-found",
                "-o",
                "jsonpath={.metadata.uid} {.status.phase}",
            )
            uid, _, phase = found.partition(" ")
            if uid and uid not in read and phase not in ("", "Pending"):
                before = newest.get(uid, "")
                newest[uid] = _follow_pod(kubectl, f"{job}-{replica}", replica, lines, stop, flags, before)
                if over or phase in _ENDED:
                    read.add(uid)
                    continue  # a further pod may be there
            elif over:
                return
            time.sleep(NEXT_POD_S)
    except ClientError as error:
        lines.put(Line("", replica, f"(no more lines of this replica: {error.message})"))
    finally:
        lines.put(None)


def _follow_pod(
    kubectl: Kubectl,
    pod: str,
    replica: int,
    lines: "queue.Queue[Line | None]",
    stop: threading.Event,
    flags: Sequence[str],
    newest: str,
) -> str:
    """Follow a pod until its log or the connection ends; return the time of its last line.

    newest   only lines after this time; empty: those that `flags` choose
    """
    since = [f"--since-time={newest}"] if newest else flags  # in whole seconds: some lines come again
    command = kubectl.command("logs", pod, "--timestamps", "--follow", *since)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in parse(replica, process.stdout):
            if stop.is_set():
                process.kill()
                break
            if line.at > newest:
                newest = line.at
                lines.put(line)
    return newest
