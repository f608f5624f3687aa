"""Reports and exits of this pod's ranks -> the coordinator, /status, and the log."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dtj import contract
from dtj.agent.rank.process import RankProcess
from dtj.agent.replica import grace
from dtj.agent.replica.heartbeats import HeartbeatReader
from dtj.agent.report.status import Status
from dtj.agent.wire import facts, outcome
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.signs import Heartbeat

_INTERFACE = "GLOO_SOCKET_IFNAME"
_LEAVES = ": this pod ends, so that another node gets the rank"
_NO_THREAD = "Resource temporarily unavailable"  # all that C++ says of it
_ON_LOOPBACK = re.compile(r"remote=\[(127\.|::1\])")


class RankEvents:
    """Called by supervisor.py for everything that happens to a rank.

    send     sends a fact to the coordinator
    log      writes a line for the user
    replace  ends this pod so that another one takes its place; None: without an operator
    grace_s  the pod's termination grace period; None if unknown
    """

    def __init__(
        self,
        status: Status,
        heartbeats: HeartbeatReader,
        *,
        send: Callable[[facts.Fact], None],
        log: Callable[[str], None],
        replace: Callable[[RankProcess], None] | None,
        grace_s: float | None,
    ) -> None:
        self._status = status
        self._heartbeats = heartbeats
        self._send = send
        self._log = log
        self._replace = replace
        self._grace_s = grace_s
        self._last = "", 0  # message and generation
        self._has_warned = False

    def started(self, process: RankProcess) -> None:
        """The rank was forked."""
        self._status.started(process.rank, process.pid)

    def reported(self, process: RankProcess, fields: dict[str, Any]) -> None:
        """The rank sent a report; see telemetry/report_pipe.py."""
        match fields:
            case {"ready": generation}:
                process.uses_dtj, process.ready_in = True, generation
                self._send(facts.Ready(process.rank, generation))
            case {"hold": holds}:
                process.holds = holds
                self._send(facts.Hold(process.rank, holds))
            case {"unformed": generation, "message": why}:
                what = f"rank {process.rank} cannot reach its peers: {why}{hint(why, os.environ)}"
                self._log(what)
                ending = process.lose_peers(what, generation=generation, is_unformed=True)
                self._send(facts.Unformed(ending, generation))
            case {"lost": why, "generation": generation}:
                ending = process.lose_peers(why, generation=generation)
                self._send(facts.Lost(ending, generation))
            case {"failure": _} if self._replace and process.failing().is_of_machine:
                self._log(f"rank {process.rank} cannot use its GPU{_LEAVES}")
                self._replace(process)
            case {"failure": _}:
                self._send(facts.Failing(process.failing(), process.generation))
            case _:
                # About the run. Only dtj reports that, even if the rank is alone and forms no group.
                process.uses_dtj = True
                if "saveFailure" in fields:
                    self._send(facts.Saves(process.rank, works=fields["saveFailure"] is None))
                if "saveSeconds" in fields:
                    self._warn_of_grace(fields["saveSeconds"])
                self._status.update(process.rank, fields)

    def ended(self, process: RankProcess, beside: Iterable[RankProcess]) -> None:
        """The rank exited and its last lines are printed.

        beside  the newest process of every rank of this pod, including this one
        """
        ending = process.ending
        assert ending is not None
        # Steps that are not reported yet, of this rank or others, were completed before its exit.
        self._pass_on(self._heartbeats.read_all(beside))
        self._status.ended(process.rank, failed=ending.failed)
        if ending.by_agent:
            return
        self._send(facts.Ended(ending, process.generation))
        if ending.failed and ending.cause != "PeerLost":
            self._log_once(_headline(process, ending), process.generation)

    def cut_off(self, process: RankProcess) -> None:
        """The rank was asked to save and stop, for another size of the job, and is killed before it did."""
        self._log(
            f"rank {process.rank} was asked to save and stop, and did not in time: it is killed, "
            "and the steps since the last checkpoint are repeated"
        )

    def stuck(self, process: RankProcess) -> None:
        """The rank was killed and does not end: no rank can start in its place on this machine."""
        leaves = _LEAVES if self._replace else ""
        self._log(f"rank {process.rank} was killed and does not end, as it waits in the kernel{leaves}")
        if self._replace:
            self._replace(process)

    def tick(self, alive: Iterable[RankProcess]) -> None:
        """Time has passed: send new heartbeats and activity."""
        alive = list(alive)
        self._pass_on(self._heartbeats.tick(alive))
        activity = self._heartbeats.activity.tick(alive)
        if activity:
            self._send(facts.Activities(activity))

    def _pass_on(self, heartbeats: Mapping[int, Heartbeat]) -> None:
        for rank, heartbeat in heartbeats.items():
            if heartbeat.step is not None:
                self._status.update(rank, {"step": heartbeat.step})
        if heartbeats:
            self._send(facts.Heartbeats(heartbeats))

    def _warn_of_grace(self, save_s: float) -> None:
        found = grace.warning(self._grace_s, save_s=save_s, step_s=self._heartbeats.step_s)
        if found and not self._has_warned:
            self._has_warned = True
            self._log(found)

    def _log_once(self, message: str, generation: int) -> None:
        """Ranks with the same mistake fail with the same message; a later generation says it again."""
        if (message, generation) != self._last:
            self._last = message, generation
            self._log(message)


def hint(why: str, env: Mapping[str, str]) -> str:
    """How to fix that gloo looks for another machine on its own loopback, or cannot start a thread."""
    if why == _NO_THREAD:
        return "\n  fix: no thread can be started: raise the limit of processes and threads (pids)"
    if not _ON_LOOPBACK.search(why) or env.get(contract.NNODES, "1") == "1" or _INTERFACE in env:
        return ""
    return (
        "\n  fix: a host name resolves to a loopback address, as in /etc/hosts of Ubuntu: set "
        f"{_INTERFACE} on each machine to the interface by which it reaches the others, such as eth0"
    )


def _headline(process: RankProcess, ending: Ending) -> str:
    """The cause in one log line; a message for the user is printed once for all ranks."""
    if process.is_for_people():
        return ending.message
    return outcome.summary(ending)
