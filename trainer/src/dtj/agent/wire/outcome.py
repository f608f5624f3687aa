"""How the ranks of this pod ended -> one cause, one exit code, one termination message. Pure.

The culprit is the first rank that failed by itself. Ranks that only lost a peer ("connection reset by peer")
are secondary, even if they died earlier.
"""

import json
import re
import signal
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import dropwhile
from types import MappingProxyType
from typing import Any, TypeGuard

from dtj import contract
from dtj.agent.wire.checked import checked
from dtj.errors import OFTEN_OUT_OF_MEMORY, signal_name

MESSAGE_BYTES = 4000
_LAST_REPORTED = ("totalSteps", "epoch", "loss", "samplesPerSecond")
_PROGRAM_ERRORS = frozenset({"Exception", "ExitCode", "OOMKilled"})
_CULPRIT_BYTES = 2800  # of the 4,096 of a termination message
_WORD = re.compile(r"\w")
_GROUP = re.compile(r"^ +\| ")  # before each line of an exception of an ExceptionGroup
# Who usually sends a signal.
_SENT_BY: dict[int, str] = {
    signal.SIGKILL: OFTEN_OUT_OF_MEMORY,
    signal.SIGTERM: " (it was asked to stop)",
}
_LINE = 300  # characters of another rank's error in the sentence about it


@dataclass(frozen=True, kw_only=True)
class Ending:
    """One rank's end.

    code      0..255, 128 + n if signal n killed it
    signal    the signal's number, None if it exited by itself
    at        when it failed: as reported by the rank, else when it was reaped
    step      last known completed step
    message   tail of its traceback, empty if there is none; of an OOM kill the memory limit
    reason    as reported by the rank, see contract.REASONS, or None
    by_agent  the agent killed it because another rank had failed
    wrote     the last lines of its output, if it reported no message
    """

    rank: int
    code: int
    at: datetime
    signal: int | None = None
    step: int | None = None
    message: str = ""
    reason: str | None = None
    by_agent: bool = False
    wrote: str = ""

    @property
    def failed(self) -> bool:
        """It ended neither done nor by an agreed stop, and the agent did not kill it."""
        return self.code != contract.EXIT_DONE and not self.has_stopped and not self.by_agent

    @property
    def has_stopped(self) -> bool:
        """It left at an agreed stop. A program that itself exits with that code reports a reason."""
        return self.code == contract.EXIT_STOPPED and self.reason is None

    @property
    def stopped_unsaved(self) -> bool:
        """It exited by itself, as all ranks do when one pod is asked to stop and nothing can be saved."""
        return self.signal is None and self.code == contract.EXIT_SIGNAL + signal.SIGTERM

    @property
    def is_final(self) -> bool:
        """A restart in place cannot help: a bad recipe, or another process owns the run's folder."""
        return self.cause in {"BadRecipe", "Superseded"}

    @property
    def is_of_machine(self) -> bool:
        """No restart on this machine can help: a GPU failed in a life that did not complete a step."""
        return self.cause == "DeviceFault" and self.step is None

    @property
    def cause(self) -> str:
        """One of contract.REASONS."""
        if self.reason in {"Hang", "OOMKilled", "PeerLost", "Superseded"}:  # even if a signal ended it
            return self.reason
        if self.signal is not None:
            return "Signal"
        if self.code == contract.EXIT_BAD_RECIPE:
            return "BadRecipe"
        if self.code == contract.EXIT_PEER_LOST:
            return "PeerLost"
        if self.has_stopped:
            return "Stopped"
        if self.code == contract.EXIT_DONE:
            return "Done"
        return self.reason or "ExitCode"

    def to_json(self) -> dict[str, Any]:
        """Fields for the wire; the message is cut to the size that a line may have."""
        fields = asdict(self) | {"at": self.at.isoformat()}
        return fit(fields, limit=MESSAGE_BYTES)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Ending":
        """From the fields of `to_json`; ValueError if they are others."""
        found: Ending = checked(cls, fields)
        return found


def first_cause(endings: Iterable[Ending]) -> Ending | None:
    """The culprit: the earliest failure with a cause of its own, else the earliest lost peer."""
    failed = [e for e in endings if e.failed]
    return min(failed, key=lambda e: (e.cause == "PeerLost", e.at, e.rank), default=None)


def came_first(culprit: Ending | None, endings: Iterable[Ending], *, ranks: range) -> TypeGuard[Ending]:
    """Whether the job's culprit is of another pod and failed before the ranks of this one.

    Then this pod's message repeats it, also if these ranks failed by themselves: the operator may see this
    pod's end first.
    """
    if culprit is None or culprit.rank in ranks or culprit.code == contract.EXIT_PEER_LOST:
        return False
    return first_cause([*endings, culprit]) is culprit


def error_number(culprit: Ending) -> int:
    """The same for each failure of the program with this error, on any rank; 0 for any other failure."""
    if culprit.cause not in _PROGRAM_ERRORS:
        return 0
    says = "" if culprit.cause == "OOMKilled" else headline(culprit.message)
    error = (culprit.cause, culprit.code, says)
    return zlib.crc32(repr(error).encode(errors="replace")) or 1


def exit_code(endings: Iterable[Ending]) -> int:
    """The exit code of the agent."""
    endings = list(endings)
    culprit = first_cause(endings)
    if culprit:
        return culprit.code
    codes = (e.code for e in endings if not e.by_agent or e.code == contract.EXIT_STOPPED)
    return max(codes, default=contract.EXIT_DONE)


def termination_fields(
    endings: Iterable[Ending],
    *,
    ranks: range,
    elsewhere: dict[str, Any] | None = None,
    reported: Mapping[str, Any],
    generation: int,
    known: Mapping[str, Any] = MappingProxyType({}),
    now: datetime,
) -> dict[str, Any]:
    """The fields of the termination message, uncut; `fit` makes them short enough.

    ranks             of this pod
    elsewhere         `failure_fields` of the rank of another replica that failed the job
    reported          what the ranks last reported about the run, as in /status
    known             the coordinator's state, as far as this agent knows it; its best step counts if these
                      ranks did not live for a step
    """
    endings = list(endings)
    culprit = first_cause(endings)
    steps = [e.step for e in endings if e.step is not None]
    step = culprit.step if culprit and culprit.step is not None else max(steps, default=None)
    code = exit_code(endings)
    saved = reported.get("checkpoint")
    return {
        "step": known.get("best_step") if step is None else step,
        **{name: reported.get(name) for name in _LAST_REPORTED},
        "reason": culprit.cause if culprit else ("Stopped" if code == contract.EXIT_STOPPED else "Done"),
        "rank": culprit.rank if culprit and culprit.rank in ranks else None,
        "exitCode": code,
        "message": describe(culprit, step) if culprit else _success(len(endings), step, code),
        "checkpoint": saved and saved["path"],
        "generation": generation,
        "inPlace": known.get("in_place"),
        "withoutProgress": known.get("without_progress"),
        "identicalFailures": known.get("identical"),
        "at": stamp(culprit.at if culprit else now),
        "culprit": elsewhere and fit(elsewhere, limit=_CULPRIT_BYTES),
    }


def excused(endings: Iterable[Ending]) -> list[Ending]:
    """The endings of a pod when the job had succeeded without its ranks: they failed, or were not needed."""
    done = {"code": contract.EXIT_DONE, "signal": None, "reason": None, "message": ""}
    return [replace(each, **done) if each.failed or each.by_agent else each for each in endings]  # type: ignore[arg-type]


def echo(culprit: Ending, *, now: datetime) -> Ending:
    """The ending of a pod whose ranks were healthy when a rank of another replica failed the job."""
    return Ending(
        rank=culprit.rank,
        code=contract.EXIT_PEER_LOST,
        at=now,
        step=culprit.step,
        message=f"lost a peer: {headline(describe(culprit, culprit.step))[:_LINE]}",
    )


def is_idle(endings: Iterable[Ending]) -> bool:
    """No rank exited by itself: none was started, or the agent killed them."""
    return all(e.by_agent and e.code != contract.EXIT_STOPPED for e in endings)


def idle_ending(*, rank: int, number: signal.Signals, now: datetime) -> Ending:
    """The ending of a pod that was asked to terminate while none of its ranks was running."""
    return Ending(
        rank=rank,
        code=contract.EXIT_SIGNAL + number,
        signal=number,
        at=now,
        message=f"stopped by {number.name} while no rank was running",
    )


def failure_fields(ending: Ending, *, generation: int, processes: int) -> dict[str, Any]:
    """The last failure as /status shows it."""
    return {
        "rank": ending.rank,
        "replica": ending.rank // processes,
        "reason": ending.cause,
        "exitCode": ending.code,
        "signal": signal_name(ending.signal) if ending.signal is not None else "",
        "message": describe(ending, ending.step),
        "step": ending.step,
        "generation": generation,
        "at": stamp(ending.at),
    }


def stamp(at: datetime) -> str:
    """RFC 3339 in UTC."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def describe(culprit: Ending, step: int | None) -> str:
    """What happened: the traceback if there is one, else its last output, and what the exit code means."""
    said = f"its last output:\n{culprit.wrote}\n" if culprit.wrote and not culprit.message else ""
    return said + _meaning(culprit, step)


def _meaning(culprit: Ending, step: int | None) -> str:
    when = f"after step {step}" if step is not None else "before its first step"
    if culprit.cause == "OOMKilled":
        limit = f" ({culprit.message})" if culprit.message else ""
        return f"rank {culprit.rank} was killed by the kernel {when}: out of memory{limit}"
    if culprit.message:
        return culprit.message
    if culprit.signal is None:
        return f"rank {culprit.rank} exited with code {culprit.code} {when}"
    hint = _SENT_BY.get(culprit.signal, "")
    return f"rank {culprit.rank} was killed by {signal_name(culprit.signal)} {when}{hint}"


def summary(ending: Ending) -> str:
    """The cause of a failure in one line."""
    if ending.message and ending.cause != "OOMKilled":
        return f"rank {ending.rank} failed: {headline(ending.message)}"
    return _meaning(ending, ending.step)


def headline(message: str) -> str:
    """The first line of the error that a traceback ends with; without a traceback the last line.

    The last line of an error of dtj says how to fix what the line before names, so it is both. So is an error
    that has its reason in the next line, as of `load_state_dict`.
    """
    lines = [_GROUP.sub("", line) for line in message.splitlines()] or [""]
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    behind = dropwhile(lambda line: not line or line.startswith(" "), lines[frames[-1] :] if frames else ())
    found, *more = [*behind] or lines[-1:]
    if found.rstrip().endswith(":"):
        found = " ".join([found.rstrip(), *(line.strip() for line in more if _WORD.search(line))][:2])
    return "; ".join(line.strip() for line in lines[-2:]) if found.startswith("  fix: ") else found


def fit(fields: dict[str, Any], *, limit: int) -> dict[str, Any]:
    """The same fields with `message` cut so that all fit into `limit` bytes of JSON.

    The end of the message is kept: it contains the error.
    """
    message = fields["message"]
    while (excess := len(encode(fields | {"message": message})) - limit) > 0 and message:
        message = message[max(1, excess // 6) :]  # the longest escape of a character has six bytes
    return fields | {"message": message}


def encode(fields: dict[str, Any]) -> bytes:
    """The JSON that is written to the file."""
    return json.dumps(fields, ensure_ascii=False).encode(errors="replace")


def _success(count: int, step: int | None, code: int) -> str:
    who = "1 rank" if count == 1 else f"{count} ranks"
    what = "stopped on request" if code == contract.EXIT_STOPPED else "done"
    return f"{who} {what}" + (f" at step {step}" if step is not None else "")
