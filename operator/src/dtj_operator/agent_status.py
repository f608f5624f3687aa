"""Parses the part of an agent's /status that the operator uses; see docs/contract.md.

The answer comes from a user's program, so every value of a wrong type or size is rejected.
"""

from typing import Annotated, Any

import msgspec

from dtj_operator.names import Key
from dtj_operator.plan.snapshot import Hung, Incident, Ledger, Progress, SilentReplica, Straggler
from dtj_operator.printable import printable

_Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
_Heals = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]  # stored as 32 bits in the status
_Index = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Word = Annotated[str, msgspec.Meta(max_length=64)]
_Name = Annotated[str, msgspec.Meta(max_length=253)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_LISTED = msgspec.Meta(max_length=1000)  # the agent lists no more


class _Failure(msgspec.Struct, rename="camel"):
    replica: _Index | None = None
    rank: _Index | None = None
    reason: _Word | None = None
    exit_code: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    signal: _Word | None = None
    message: _Text | None = None
    generation: _Index | None = None
    step: _Index | None = None
    at: _Word | None = None


class _Restarts(msgspec.Struct, rename="camel"):
    in_place: _Heals = 0


class _Ledger(msgspec.Struct):
    productive: _Seconds = 0.0
    startup: _Seconds = 0.0
    lost: _Seconds = 0.0
    recovering: _Seconds = 0.0


class _Slowest(msgspec.Struct):
    rank: _Index
    replica: _Index | None = None
    ratio: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None


class _Hang(msgspec.Struct):
    ranks: Annotated[list[_Index], _LISTED] = []
    message: _Text = ""


class _Missing(msgspec.Struct):
    replica: _Index
    seconds: _Seconds


class _Answer(msgspec.Struct, rename="camel"):
    attempt: int
    job: _Name | None = None
    job_uid: _Name | None = None
    replica: int | None = None
    step: _Whole | None = None
    total_steps: _Whole | None = None
    epoch: _Whole | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    eta_seconds: float | None = None
    rejoin: bool = False
    restarts: _Restarts | None = None
    ledger: _Ledger | None = None
    failure: _Failure | None = None
    slowest_rank: _Index | None = None
    slowest: _Slowest | None = None
    hang: _Hang | None = None
    missing: Annotated[list[_Missing], _LISTED] | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def parse(raw: bytes, key: Key, uid: str, observed_at: float, address: str, *, ranks: int) -> Progress:
    """Parse an answer of replica 0; raises msgspec.MsgspecError if it is invalid or from another agent.

    Raises UnicodeDecodeError or RecursionError for some invalid JSON.

    key, uid     of the job whose agent was polled
    observed_at  seconds since the epoch
    address      of the pod that answered
    ranks        of the job at most
    """
    answer = _decode(raw)
    if max(len(answer.missing or ()), len(answer.hang.ranks if answer.hang else ())) > ranks:
        raise msgspec.ValidationError(f"the agent at {address} names more than the {ranks} ranks of the job")
    if (answer.job, answer.job_uid, answer.replica) != (key.name, uid, 0):
        raise msgspec.ValidationError(f"the agent at {address} does not belong to replica 0 of {key}")
    return Progress(
        attempt=answer.attempt,
        observed_at=observed_at,
        address=address,
        step=answer.step,
        total_steps=answer.total_steps,
        epoch=answer.epoch,
        loss=answer.loss,
        samples_per_second=answer.samples_per_second,
        eta_s=_plausible(answer.eta_seconds),
        rejoin=answer.rejoin,
        in_place=answer.restarts.in_place if answer.restarts else 0,
        ledger=None if answer.ledger is None else Ledger(**msgspec.structs.asdict(answer.ledger)),
        incident=None if answer.failure is None else _incident(answer.failure),
        slowest=_straggler(answer),
        hang=None
        if answer.hang is None
        else Hung(ranks=tuple(answer.hang.ranks), message=printable(answer.hang.message)),
        silent_replicas=tuple(
            SilentReplica(replica=each.replica, seconds=each.seconds) for each in answer.missing or ()
        ),
    )


def _incident(failure: _Failure) -> Incident:
    given: dict[str, Any] = msgspec.structs.asdict(failure)
    fields: dict[str, Any] = {k: printable(v) if isinstance(v, str) else v for k, v in given.items()}
    return Incident(**fields)


def _straggler(answer: _Answer) -> Straggler | None:
    if answer.slowest is not None:
        return Straggler(**msgspec.structs.asdict(answer.slowest))
    return None if answer.slowest_rank is None else Straggler(rank=answer.slowest_rank)


def _plausible(seconds: float | None) -> float | None:
    """Drop an estimate of more than ten years, which may not fit into a date."""
    return seconds if seconds is not None and 0 <= seconds <= 10 * 365 * 86_400 else None
