"""Runs the replicas of a job as processes of this machine, and replaces those that are lost.

A replica is a fork of this process, which has torch imported, so a replacement starts in milliseconds. In a
cluster the operator does this with pods; ranks within a replica are restarted by its agent in both.
"""

import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dtj import contract
from dtj.agent import alone, process_end
from dtj.agent.child_process import detach, signals_blocked
from dtj.agent.placement import threads
from dtj.agent.rank.preload import preload, search
from dtj.agent.signals import hang_up
from dtj.agent.wire.link import free_ports
from dtj.errors import RecipeError, how_it_ended
from dtj.local.manifest import LocalJob, environment, expand, shared
from dtj.telemetry.say import say

Main = Callable[[list[str]], None]  # the command dtj; exits


def run(job: LocalJob, main: Main) -> int:
    """Run the job until it is over; return the exit code of the first replica that failed, else 0.

    RecipeError if its program is not on this machine.
    """
    if not job.runs_dtj and shutil.which(job.command[0]) is None:
        raise RecipeError(
            f"the job runs {job.command[0]}, which is not on this machine",
            fix="install it here, or let the job run dtj: args: [run, train.py]",
        )
    if job.runs_dtj:  # Python and libraries read some variables once, before the replicas are forked
        os.environ.update(given := shared(job))
        search(given.get("PYTHONPATH", ""))
    # A laptop's host name often resolves to an address that its processes cannot reach.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    share = threads(os.environ, nproc=job.processes * job.replicas)
    os.environ.setdefault("OMP_NUM_THREADS", str(share))
    if job.runs_dtj:
        preload(share)
    found = _Replicas(job, main)
    try:
        return found.run()
    finally:
        alone.forget(found.uid)


class _Replicas:
    """The processes of one job.

    pids    of the replicas that run, with their indices
    lost    replicas that were replaced so far
    done    replicas that have succeeded
    """

    def __init__(self, job: LocalJob, main: Main) -> None:
        self.uid = str(uuid.uuid4())
        self._job, self._main = job, main
        self._port, *self._agent_ports = free_ports(job.replicas + 1)
        self._pids: dict[int, int] = {}
        self._lost = 0
        self._done: set[int] = set()
        self._code = contract.EXIT_DONE
        self._is_stopping = False

    def run(self) -> int:
        say(f"{self._job.name}: replicas {self._job.replicas}, ranks in each {self._job.processes}")
        if self._job.runs_dtj:
            say(f"/status of each replica: 127.0.0.1, port {', '.join(map(str, self._agent_ports))}")
        if self._job.ignored:
            say(f"no effect on this machine: {', '.join(self._job.ignored)}")
        for number in (signal.SIGTERM, signal.SIGINT, *hang_up()):
            signal.signal(number, self._forward)
        if not all(self._start(index) for index in range(self._job.replicas)):
            self._code = contract.EXIT_SIGNAL + signal.SIGTERM
        while self._pids:
            pid, status = os.waitpid(-1, 0)
            if pid in self._pids:
                self._ended(self._pids.pop(pid), os.waitstatus_to_exitcode(status))
        return self._code

    def _start(self, index: int) -> bool:
        """Start a replica; return whether it was: not after a signal, which it would not get."""
        ours = os.getpid()
        with signals_blocked():  # so that a signal finds the new replica in the list
            if self._is_stopping:
                return False
            pid = os.fork()
            if pid == 0:
                _be(self._job, self._environment(index), self._main, runner=ours)
            self._pids[pid] = index
        return True

    def _environment(self, index: int) -> dict[str, str]:
        return environment(
            self._job,
            index=index,
            uid=self.uid,
            port=self._port,
            agent_port=self._agent_ports[index],
            lost=self._lost,
        )

    def _has_succeeded(self) -> bool:
        """Whether the replicas that decide are done."""
        return bool(self._job.deciding) and self._job.deciding <= self._done

    def _ended(self, index: int, code: int) -> None:
        if self._has_succeeded():
            return
        if code == contract.EXIT_DONE:
            self._done.add(index)
            if self._has_succeeded() and self._pids:
                say("the replicas of successPolicy have succeeded: ending the others")
                self._forward(signal.SIGTERM, None)
            return
        if self._is_stopping or not is_lost(self._job, code) or self._lost == self._job.max_restarts:
            self._fail(index, code)
            return
        self._lost += 1
        say(
            f"replica {index} {how_it_ended(code)}: replaced "
            f"({self._lost} of {self._job.max_restarts} restarts of replicas used)"
        )
        if not self._start(index):
            self._fail(index, code)

    def _fail(self, index: int, code: int) -> None:
        """Keep the code of the first cause, and end the others, which may wait for this replica."""
        say(f"replica {index} {how_it_ended(code)}")
        if self._code in {contract.EXIT_DONE, contract.EXIT_PEER_LOST, contract.EXIT_STOPPED}:
            self._code = code if code >= 0 else contract.EXIT_SIGNAL - code
        # A replica that lost a peer may end before the one with the cause; replica 0 tells both.
        if not self._is_stopping and (index == 0 or code != contract.EXIT_PEER_LOST):
            self._forward(signal.SIGTERM, None)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._is_stopping = True
        for pid in self._pids:
            with suppress(ProcessLookupError):  # `run` has just reaped it
                os.kill(pid, number)


def is_lost(job: LocalJob, code: int) -> bool:
    """Whether a replica ended as an evicted or killed pod does, and the others can continue with another."""
    stopped = {contract.EXIT_STOPPED, contract.EXIT_SIGNAL + signal.SIGTERM}
    return job.runs_dtj and (code < 0 or code in stopped)


def words(job: LocalJob, env: Mapping[str, str]) -> list[str]:
    """The command of a replica; its agent writes no last report, which only an operator reads."""
    found = [expand(each, env) for each in job.command]
    if job.runs_dtj and found[1] in {"run", "train"}:
        found[2:2] = ["--termination-log", os.devnull]
    return found


def _be(job: LocalJob, variables: Mapping[str, str], main: Main, *, runner: int) -> NoReturn:
    """Called in the child: become the replica."""
    code = 1
    try:
        detach(runner)
        os.environ.update(variables)
        # The programs of this Python come first, as in the image.
        os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        found = words(job, dict(os.environ))
        if not job.runs_dtj:
            os.execvp(found[0], found)
        sys.orig_argv = [sys.executable, "-m", "dtj", *found[1:]]  # an agent may start itself again
        main(found[1:])
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 0
    except OSError as error:
        say(f"cannot run {job.command[0]}: {error.strerror}")
    finally:
        process_end.end_now(code)
