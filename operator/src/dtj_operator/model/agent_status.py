"""The part of an agent's /status that the operator uses; see docs/contract.md.

The answer comes from a user's program, so every value of a wrong type or size is rejected.
"""

from typing import Annotated

import msgspec
from msgspec.structs import asdict

from dtj_operator.model.names import Key
from dtj_operator.model.reported import MAX_IN_PLACE, Reported

_Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
_Heals = Annotated[int, msgspec.Meta(ge=0, le=MAX_IN_PLACE)]
_Index = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Word = Annotated[str, msgspec.Meta(max_length=64)]
_Name = Annotated[str, msgspec.Meta(max_length=253)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_LISTED = msgspec.Meta(max_length=1000)  # the agent lists no more


class Incident(Reported, frozen=True, kw_only=True):
    """The last failure as the agents report it."""

    replica: _Index | None = None
    rank: _Index | None = None
    reason: _Word | None = None
    exit_code: _Index | None = None
    signal: _Word | None = None
    message: _Text | None = None
    generation: _Index | None = None
    at: _Word | None = None  # RFC 3339


class InPlace(Reported, frozen=True, kw_only=True):
    """Failures of ranks that the agents healed without a new pod."""

    in_place: _Heals = 0
    without_progress: _Heals | None = None  # of these and of the operator's, since the last progress
    of_newest_pod: _Heals | None = None  # DTJ_RESTARTS of the newest pod that has joined


class Ledger(Reported, frozen=True, kw_only=True):
    """Where the seconds of an attempt went, as its agents report it."""

    productive: _Seconds = 0.0
    startup: _Seconds = 0.0
    lost: _Seconds = 0.0
    recovering: _Seconds = 0.0


class Straggler(Reported, frozen=True, kw_only=True):
    """A rank that completes steps, but so slowly that all other ranks wait for it."""

    rank: _Index
    replica: _Index | None = None
    ratio: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None  # its time for a step by the others'


class Hung(Reported, frozen=True, kw_only=True):
    """A hang that the agents only report, while it lasts."""

    ranks: Annotated[tuple[_Index, ...], _LISTED] = ()
    message: _Text = ""


class SilentReplica(Reported, frozen=True, kw_only=True):
    """A replica that took part and that the others have been waiting for."""

    replica: _Index
    seconds: _Seconds


class _Sender(Reported, frozen=True, kw_only=True):
    """Which agent says it."""

    job: _Name | None = None
    job_uid: _Name | None = None
    replica: int | None = None
    attempt: int


class _Answer(_Sender, frozen=True, kw_only=True):
    world_size: _Whole | None = None  # ranks of the present generation
    step: _Whole | None = None
    total_steps: _Whole | None = None
    epoch: _Whole | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    eta_s: float | None = msgspec.field(default=None, name="etaSeconds")
    rejoin: bool = False  # the agents of this attempt can recover in place when a pod is replaced
    restarts: InPlace | None = None
    ledger: Ledger | None = None
    incident: Incident | None = msgspec.field(default=None, name="failure")
    slowest_rank: _Index | None = None
    slowest: Straggler | None = None
    hang: Hung | None = None
    save_failure: _Text | None = None  # why no checkpoint can be written, while that lasts
    missing: Annotated[tuple[SilentReplica, ...], _LISTED] | None = None
    waiting: _Text | None = None  # why replicas that have joined do not train, while that lasts
    at: _Word | None = None  # changes with every answer of an agent that is not stopped

    @property
    def in_place(self) -> int:
        """In-place restarts of this attempt."""
        return self.restarts.in_place if self.restarts else 0

    @property
    def silent_replicas(self) -> tuple[SilentReplica, ...]:
        return self.missing or ()


class Unheard(_Sender, frozen=True, kw_only=True):
    """For how long an agent has not heard from replica 0's, as it said at this moment of its own clock."""

    at: _Word
    seconds: _Seconds = msgspec.field(name="unheardSeconds")


class Progress(_Answer, frozen=True, kw_only=True):
    """The last answer of replica 0's agent."""

    observed_at: float  # seconds since the epoch
    address: str = ""  # of the pod that answered


_decode = msgspec.json.Decoder(_Answer).decode
_decode_other = msgspec.json.Decoder(Unheard).decode


def parse(raw: bytes, key: Key, uid: str, observed_at: float, address: str, *, ranks: int) -> Progress:
    """Parse an answer of replica 0; raises msgspec.MsgspecError if it is invalid or from another agent.

    Raises UnicodeDecodeError or RecursionError for some invalid JSON.

    key, uid     of the job whose agent was polled
    observed_at  seconds since the epoch
    address      of the pod that answered
    ranks        of the job at most
    """
    answer = _decode(raw)
    if max(len(answer.silent_replicas), len(answer.hang.ranks if answer.hang else ())) > ranks:
        raise msgspec.ValidationError(f"the agent at {address} names more than the {ranks} ranks of the job")
    if (answer.job, answer.job_uid, answer.replica) != (key.name, uid, 0):
        raise msgspec.ValidationError(f"the agent at {address} does not belong to replica 0 of {key}")
    fields = asdict(answer)
    if answer.slowest is None and answer.slowest_rank is not None:
        fields["slowest"] = Straggler(rank=answer.slowest_rank)
    if answer.eta_s is not None and not 0 <= answer.eta_s <= 10 * 365 * 86_400:
        fields["eta_s"] = None  # more than ten years may not fit into a date
    return Progress(**fields, observed_at=observed_at, address=address)


def parse_other(raw: bytes, key: Key, uid: str, attempt: int, replica: int) -> Unheard:
    """Parse an answer of another replica, like `parse`; invalid if its agent is too old to say it."""
    answer = _decode_other(raw)
    if (answer.job, answer.job_uid, answer.attempt, answer.replica) != (key.name, uid, attempt, replica):
        raise msgspec.ValidationError(f"the agent does not belong to replica {replica} of {key}")
    return answer
