"""Reads /proc: CPU time, input and output, wake-ups and parents of processes. Linux only."""

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_HANDLED = b"\nSigCgt:"
_FILE_BYTES = 16 * 1024  # larger than any file that is read here
# Reading a process that exited just now fails, or returns a file without most of its fields.
_ENDED = (FileNotFoundError, ProcessLookupError, ValueError)


class Process(NamedTuple):
    """One line of `ps`, with the state as its letter."""

    parent: int
    group: int
    state: str
    cpu_s: float


class Usage(NamedTuple):
    """What a process and all its descendants have used so far.

    pids           of the processes in the table; some may have exited since
    is_busy        one of them waits for a disk or a network file system, or is traced by a debugger
    runnable       pids of those whose main thread runs, or waits for a processor
    stopped        pids of those that are stopped, by SIGSTOP for example
    wakeups        of the root process's main thread
    other_wakeups  likewise of the other processes, by pid
    """

    pids: frozenset[int]
    cpu_s: float
    io_bytes: int
    is_busy: bool
    runnable: frozenset[int]
    stopped: frozenset[int]
    wakeups: int
    other_wakeups: Mapping[int, int]


class ProcessTable:
    """The processes at one moment, by pid."""

    def __init__(self, known: Mapping[int, Process]) -> None:
        self.known = known
        self._below = defaultdict[int, list[int]](list)  # its children, and the members of its group
        for pid, process in known.items():
            self._below[process.parent].append(pid)
            self._below[process.group].append(pid)

    def tree(self, root: int) -> set[int]:
        """A known process and all that it started."""
        found, new = set[int](), [root]
        while new:
            pid = new.pop()
            if pid not in found:
                found.add(pid)
                new += self._below[pid]
        return found


def usage_of(root: int, table: ProcessTable) -> Usage | None:
    """Usage of the process with this pid and all that it started; None if it cannot be read."""
    known = table.known
    if root not in known:
        return None
    pids = table.tree(root)
    io_bytes, wakeups = 0, {}
    for pid in pids:
        try:
            counted = _io_bytes(pid), _field(_read(pid, "status"), b"voluntary_ctxt_switches:")
        except _ENDED:
            if pid == root:
                return None
            continue  # a rank that starts short-lived processes is active and must still be read
        except OSError:  # no permission to read it
            return None
        io_bytes, wakeups[pid] = io_bytes + counted[0], counted[1]
    return Usage(
        pids=frozenset(pids),
        cpu_s=sum(known[pid].cpu_s for pid in pids),
        io_bytes=io_bytes,
        is_busy=any(known[pid].state in "Dt" for pid in pids),
        runnable=frozenset(pid for pid in pids if known[pid].state == "R"),
        stopped=frozenset(pid for pid in pids if known[pid].state == "T"),
        wakeups=wakeups.pop(root),
        other_wakeups=wakeups,
    )


def processes() -> ProcessTable:
    """All processes on this machine, or in this pod; none if there is no /proc."""
    names = [folder.name for folder in _PROC.iterdir()] if (_PROC / "self").exists() else []
    found = {int(name): process_of(int(name)) for name in names if name.isdecimal()}
    return ProcessTable(
        {pid: process for pid, process in found.items() if process and process.state not in "ZX"}
    )


def process_of(pid: int) -> Process | None:
    """None if there is no such process, or it cannot be read."""
    with contextlib.suppress(OSError):
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return Process(parent=int(fields[1]), group=int(fields[2]), state=fields[0].decode(), cpu_s=cpu_s)
    return None


def handles(pid: int, number: int) -> bool:
    """Whether the process has a handler for this signal; True if that cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        file = _read(pid, "status")
        handled = file[file.index(_HANDLED) + len(_HANDLED) :].split(maxsplit=1)[0]
        return bool(int(handled, 16) >> (number - 1) & 1)
    return True


def _io_bytes(pid: int) -> int:
    """Bytes of all calls, and those that reach a disk: a single long call counts only at its end."""
    file = _read(pid, "io")
    return sum(_field(file, name) for name in (b"rchar:", b"wchar:", b"read_bytes:", b"write_bytes:"))


def _field(file: bytes, name: bytes) -> int:
    """ValueError if there is no such field: a process about to be reaped has lost most of them."""
    start = file.index(b"\n" + name) if not file.startswith(name) else -1
    return int(file[start + 1 + len(name) :].split(maxsplit=1)[0])


def _read(pid: int, name: str) -> bytes:
    """Bytes, since a process name may be anything. Not Path, which is many times slower."""
    fd = os.open(f"{_PROC}/{pid}/{name}", os.O_RDONLY)
    try:
        return os.read(fd, _FILE_BYTES)
    finally:
        os.close(fd)
