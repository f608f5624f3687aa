"""Two samples of every silent rank -> which ranks keep the others waiting; are they at work? Pure.

A rank inside a collective waits for others. On an accelerator the wait has no frame of its own: the program
stands where it next reads the device. But NCCL counts: a rank that has begun fewer collectives than others,
and waits for none, keeps them waiting. If there is no such rank, a majority that stands at one place waits,
too, and the other ranks keep them waiting. A rank that does so hangs if it does nothing; if it does
something, it may be an evaluation or an endless loop, and it gets more time.

The native code of a backward pass, or of an operator on shards, computes and waits in one frame. So if all
seem to wait, but some use a CPU and others do nothing, these others wait for those.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtj.agent.wire.probe import USES_CPU, Probe


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What keeps the job from its next step.

    culprits   ranks that the others wait for; all ranks if none stands out
    is_stopped the culprits are stopped, which no long step explains
    is_shared  no rank stands out, so that no rank and no node is to blame
    working    the culprit that may be at work and gets the most time; None if none is
    patience   share of the time for ranks at work that it gets
    """

    culprits: Sequence[int]
    is_stopped: bool = False
    is_shared: bool = False
    working: int | None = None
    patience: float = 0.0


def judge(probes: Mapping[int, Probe], *, has_ended: bool = False) -> Verdict:
    """Judge a silence after the first step; `probes` has every rank but those that have ended, if any."""
    if stopped := [rank for rank, probe in probes.items() if probe.is_stopped]:
        return Verdict(culprits=sorted(stopped), is_stopped=True)
    crowd = _majority(probes)
    suspects = (
        _late(probes)
        or [
            rank
            for rank, probe in probes.items()
            if not probe.waits
            and (not probe.responds or probe.place.frame)  # else its main thread is unknown
            and (crowd is None or probe.place[:2] != crowd)
        ]
    )
    computing = _computing(probes) if not suspects else []
    culprits = sorted(suspects or computing or probes)
    # A wait for an accelerator uses CPU, so the CPU of a majority counts only if there is no other suspect.
    able = computing or [rank for rank in culprits if not probes[rank].waits]
    working = max(able, key=lambda rank: (probes[rank].patience, -rank), default=None)
    patience = 0.0 if working is None else probes[working].patience
    return Verdict(
        culprits=culprits,
        is_shared=_is_shared(culprits, probes, has_ended=has_ended),
        working=working if patience else None,
        patience=patience,
    )


def judge_before_first_step(
    probes: Mapping[int, Probe], *, silent_s: float, is_early: bool = False, has_ended: bool = False
) -> Verdict:
    """Stopped ranks, else ranks that keep others waiting; none if one of these runs, or wakes up at times.

    is_early   name only ranks that are stopped, or that all wait
    has_ended  another rank has ended; all may wait for it
    A rank that wakes up may wait for something outside the job, for example for data that is not there yet.
    One that wants to run may get next to no processor time.
    """
    stopped = sorted(rank for rank, probe in probes.items() if probe.is_stopped)
    if is_early and not stopped and not _all_wait(probes):
        return Verdict(culprits=[])
    others = [probe for probe in probes.values() if not (probe.waits or probe.loads)]
    are_stuck = all(probe.asleep_s > silent_s / 2 and probe.does != USES_CPU for probe in others)
    if stopped or (are_stuck and len(others) < len(probes)):
        found = stopped or sorted(r for r, probe in probes.items() if not probe.waits) or sorted(probes)
        return Verdict(culprits=found, is_shared=_is_shared(found, probes, has_ended=has_ended))
    return Verdict(culprits=[])


def describe(rank: int, probe: Probe) -> str:
    """What a culprit was found to do."""
    if probe.is_stopped:
        return f"rank {rank} is stopped (by SIGSTOP or a debugger)"
    if not probe.responds:
        return f"rank {rank} does not respond"
    if not probe.place.frame:
        return f"rank {rank} has too many threads to tell where it is"
    busy = f" and {probe.does}" if probe.works else ""
    loads = ", where it waits for its data workers" if probe.loads else ""
    stopped = f"; its process {probe.stopped} is stopped (by SIGSTOP or a debugger)" if probe.stopped else ""
    return f"rank {rank} is in {probe.place.text}{loads}{busy}{stopped}"


def describe_all(probes: Mapping[int, Probe], *, has_ended: bool = False, leaving: Sequence[int] = ()) -> str:
    """The message if no rank stands out; `leaving` are ranks whose pod was asked to terminate."""
    known = sorted(probes.items(), key=lambda each: (each[0] not in leaving, each[0]))
    rank, probe = next(((r, p) for r, p in known if p.place.frame), (0, Probe()))
    places = {each.place.frame for each in probes.values()}
    where = _two_places(known)
    if has_ended and _all_wait(probes):
        return f"the ranks that are left wait for one that has ended ({where})"
    if leaving and _all_wait(probes):
        return (
            f"all ranks wait for each other since the pod of rank {min(leaving)} was asked to terminate, so "
            f"no rank is to blame; a handler of SIGTERM must not wait for other ranks ({where})"
        )
    if len(places) == 1 or _all_wait(probes):
        causes = "usually they called different collectives, or in another order; lost packets look the same"
        hint = f"; {causes}" if "; " in where else ""
        return f"all ranks wait for each other, so no rank is to blame{hint} ({where})"
    return f"no rank stands out, so no rank is to blame; {describe(rank, probe)}"


def _two_places(known: Sequence[tuple[int, Probe]]) -> str:
    """Where a rank is, and one elsewhere: if ranks call other collectives, or one more, that tells it."""
    first: dict[tuple[str, str], str] = {}
    for rank, probe in known:
        first.setdefault(probe.place[:2], f"rank {rank} in {probe.place.text}")
    return "; ".join(list(first.values())[:2])


def _is_shared(culprits: Sequence[int], probes: Mapping[int, Probe], *, has_ended: bool) -> bool:
    """No rank stands out; a rank that is left alone is not to blame for waiting for one that has ended."""
    return len(culprits) == len(probes) and (len(probes) > 1 or (has_ended and _all_wait(probes)))


def _all_wait(probes: Mapping[int, Probe]) -> bool:
    return all(probe.waits for probe in probes.values())


def _computing(probes: Mapping[int, Probe]) -> list[int]:
    """Ranks that use a CPU although all seem to wait; none if there is no rank that does nothing."""
    if not _all_wait(probes) or all(probe.does for probe in probes.values()):
        return []
    return [rank for rank, probe in probes.items() if probe.does == USES_CPU]


def _late(probes: Mapping[int, Probe]) -> list[int]:
    """Ranks that have begun fewer collectives of NCCL in a group than others there, and wait for none."""
    most: dict[str, int] = {}
    for probe in probes.values():
        for group, (begun, _) in probe.collectives.items():
            most[group] = max(begun, most.get(group, begun))
    return [
        rank
        for rank, probe in probes.items()
        if not probe.waits
        and all(begun == done for begun, done in probe.collectives.values())
        and any(begun < most[group] for group, (begun, _) in probe.collectives.items())
    ]


def _majority(probes: Mapping[int, Probe]) -> tuple[str, str] | None:
    """The place at which more than half of all ranks stand still; each rank loads samples of its own."""
    still = [p.place for p in probes.values() if p.place.frame and not (p.moved or p.waits or p.loads)]
    counted = Counter((place.frame, place.caller) for place in still).most_common(1)
    if not counted or counted[0][1] < 2 or counted[0][1] * 2 <= len(probes):
        return None
    return counted[0][0]
