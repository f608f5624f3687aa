"""What does a fault mean for the job?

The first matching rule wins: the user's rules, then 78, or a program that the image does not have ->
FailJob, stops on request, disruptions, and ranks that lacked a pod which has not started ->
RestartUncounted, else Restart. Counted restarts have two budgets: restarts within a window of time, and
consecutive restarts without progress. An in-place restart by the agents counts like a restart, and the user's
rules apply to its failure: it is too late to prevent it, but FailJob ends the job, and RestartUncounted does
not count it.

Progress is a new step. The agents see every life of the ranks, so what they report of the row of restarts
since the last progress is believed, and new pods continue that row. A program that reports no steps makes
progress by running for ten minutes; without that, its restarts spend the second budget only if it ends with
the same error every time: in place, as its agents report, or in new pods.

With scope Replica only the failed pods are replaced, as long as a survivor is left to recover from.
"""

import hashlib
from collections.abc import Iterable

from msgspec.structs import replace

from dtj_operator.model import times
from dtj_operator.model.exit_report import ExitReport
from dtj_operator.model.memory import PENDING, RECOVERING, REPLICA, RUNNING, STARTING, Restarts
from dtj_operator.model.spec import MOST_RESTARTS, Rule
from dtj_operator.plan import blame
from dtj_operator.plan.actions import AwaitCause, Fail, Fault, Restart, Verdict, ends_attempt
from dtj_operator.plan.isolation import isolated_since
from dtj_operator.plan.policies.size import participating
from dtj_operator.plan.snapshot import Snapshot

MAX_BACKOFF_S = 300.0
MOST_AT_ONCE = 10  # restarts in a row without any back-off; then one a second, or the API server suffers
RAN_WELL_S = 600.0  # in phase Running; counts as progress of a program that reports no steps
BACKOFF_JITTER = 0.2  # of the delay, plus or minus: after an outage a thousand jobs must not restart in step
MAX_REPLACED = 100  # pods at once; with more the whole job restarts, which keeps the status small
CAUSE_WAIT_S = 5.0  # how long a consequence waits for its cause: two kubelets report seconds apart
CULPRIT_WAIT_S = 30.0  # how long a fault that another pod reports waits for its own pod to end


def restart(s: Snapshot) -> Restart | Fail | AwaitCause | None:
    """Decide what the primary fault means."""
    fault = blame.first_fault(s)
    if fault is None:
        return _restart_without_done(s)
    if _is_recorded(s, fault):
        return Restart(fault, counts=False, replaces=_broken(s), same_incident=True)
    if (until := _known_at(s, fault)) > s.now:
        return AwaitCause(until=until)
    action, rule = _action(s, fault)
    if action == "FailJob":
        return Fail("RecoveryRule", f"{fault.sentence}; not restarted because of {rule}", fault)
    if action == "RestartUncounted":
        return Restart(fault, counts=False, replaces=_broken(s), same_incident=_is_same_incident(s, fault))
    return _within_budget(s, fault)


def listable(s: Snapshot, pods: Iterable[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    """As many of these pods (index, uid) as the status can list; the others follow in the next reconcile."""
    listed = [index for index in s.memory.private.replacing if index not in s.current]
    return tuple(sorted(pods)[: max(0, MAX_REPLACED - len(listed))])


def fail_healed(s: Snapshot) -> Fail | None:
    """End the job if the agents healed a failure for which a rule says FailJob."""
    healed = blame.in_place_fault(s)
    if healed and (found := _user_rule(s, healed)) and found[0] == "FailJob":
        return Fail("RecoveryRule", f"{healed.sentence}; no further restart because of {found[1]}", healed)
    return None


def counters(s: Snapshot) -> Restarts:
    """The stored counters plus what the agents report: in-place restarts, and new steps."""
    old = s.memory.restarts
    reports = blame.exit_reports(s)
    in_place = [report.in_place or 0 for report in reports]
    reported = max([s.answer.in_place if s.answer else 0, *in_place])
    new = max(0, reported - old.in_place_of_attempt)
    uncounted = new if _heals_uncounted(s) else 0
    counted = new - uncounted
    steps = [old.highest_step, s.answer.step if s.answer else None, *(report.step for report in reports)]
    highest = max((step for step in steps if step is not None), default=None)
    known = None if highest is None else _reported_row(s, reports)
    row = old.without_progress + new if known is None else known
    progressed = highest != old.highest_step or (highest is None and _ran_well(s))
    if known is None and progressed:
        row = 0
    ended = old.without_progress + new - row  # restarts that were in the row until there was progress
    progressed = progressed or ended > 0
    # The others of an elastic job train on, but that pod may fail again at its start.
    repeats = _awaits_successor(s) and not _ran_well(s)
    return Restarts(
        counted=old.counted + counted,
        counted_at=within_window(s, (*old.counted_at, *(int(s.now),) * min(counted, MOST_RESTARTS))),
        disruptions=old.disruptions + uncounted,
        in_place=old.in_place + new,
        in_place_of_attempt=max(reported, old.in_place_of_attempt),
        without_progress=row,
        identical=0 if progressed else old.identical,
        uncounted=0 if progressed and not repeats else old.uncounted + max(0, ended),
        highest_step=highest,
        at_replacement=old.at_replacement,
    )


def counters_after(s: Snapshot, verdict: Verdict | None) -> Restarts:
    """The same once the verdict is recorded."""
    now = counters(s)
    if ends_attempt(verdict):
        now = replace(now, in_place_of_attempt=0)
    if not isinstance(verdict, Restart) or verdict.same_incident:
        return now
    now = replace(now, identical=_identical_failures(s, verdict.fault))
    if verdict.counts:
        counted_at = within_window(s, (*now.counted_at, int(s.now)))
        more = now.without_progress + 1
        now = replace(now, counted=now.counted + 1, counted_at=counted_at, without_progress=more)
    else:
        another = not _is_old(s, verdict.fault)
        now = replace(now, disruptions=now.disruptions + 1, uncounted=now.uncounted + another)
    return replace(now, at_replacement=now.counted + now.disruptions)


def _reported_row(s: Snapshot, reports: list[ExitReport]) -> int | None:
    """Restarts in a row without progress as the coordinator counts them; None if that is not known.

    reports  of the pods that have ended; steps that only they know of are newer than the answer
    The coordinator learns of a pod that we replaced once the new pod has joined.
    """
    if _awaits_successor(s):
        return None
    if (row := blame.last_report(s).without_progress) is not None:
        return row
    began, answer = s.memory.changed_at, s.answer
    if s.memory.phase != RUNNING or answer is None or began is None or answer.observed_at < began:
        return None
    known = max(s.memory.restarts.highest_step or 0, answer.step or 0)
    if answer.silent_replicas or any((report.step or 0) > known for report in reports):
        return None
    return answer.restarts.without_progress if answer.restarts else None


def _awaits_successor(s: Snapshot) -> bool:
    """Whether no pod has joined that is newer than the last restart, as far as the agents tell."""
    newest = s.answer.restarts.of_newest_pod if s.answer and s.answer.restarts else None
    return newest is not None and newest < s.memory.restarts.at_replacement


def _identical_failures(s: Snapshot, fault: Fault) -> int:
    """How many failures in a row, with this one, were this error of the program; 0 for any other fault."""
    if fault.reason not in blame.PROGRAM_ERRORS:
        return 0
    known = 1 + (counters(s).identical if blame.is_same_error(fault, s.memory.failure) else 0)
    reported = [report.identical_failures or 0 for report in blame.exit_reports(s)]
    return max([known, *reported])


def _is_old(s: Snapshot, fault: Fault) -> bool:
    """Whether the pod of a recovering job is older than its last restart.

    Pods that are taken away together, such as those of a rack, are one restart.
    """
    pod, began = s.current.get(fault.replica), s.memory.changed_at
    if s.memory.phase != RECOVERING or pod is None or pod.seen.bound is None or began is None:
        return False
    return s.wall(pod.seen.bound) < began


def within_window(s: Snapshot, counted_at: tuple[int, ...]) -> tuple[int, ...]:
    """The times that still count; one in the future, because the clock was set back, counts as now."""
    now, window_s = int(s.now), s.job.recovery.window_s
    return tuple(min(at, now) for at in counted_at if now - at < window_s)[-MOST_RESTARTS:]


def backoff_until(s: Snapshot) -> float:
    """When the pods of this attempt may be created: at once, unless the last fault is likely to repeat."""
    if s.memory.phase != RECOVERING or s.memory.changed_at is None or _skips_backoff(s):
        return s.now
    row, restarts = _in_a_row(s), s.memory.restarts
    delay = min(MAX_BACKOFF_S, s.job.recovery.backoff_s * 2.0 ** min(max(row - 1, 0), 30))
    if not delay and row > MOST_AT_ONCE:
        delay = 1.0
    if s.memory.changed_at > s.now + delay:
        return s.now  # the clock was set back since then, so the start of the delay is unknown
    seed = f"{s.job.uid}/{s.memory.attempt}/{restarts.counted + restarts.disruptions}"
    return s.memory.changed_at + delay * (1 + BACKOFF_JITTER * _jitter(seed))


def _skips_backoff(s: Snapshot) -> bool:
    """Whether a healthy job lost a pod to a disruption, or a rank after new steps, for the first time."""
    since = s.memory.condition("Healthy").get("lastTransitionTime")
    was_healthy = times.parse(since) == s.memory.changed_at
    disrupted = s.memory.failure.get("reason") in blame.DISRUPTIONS
    steps = s.memory.restarts.highest_step is not None
    return was_healthy and _in_a_row(s) <= 1 and (disrupted or steps)


def _in_a_row(s: Snapshot) -> int:
    """Restarts of any kind since the last progress."""
    return s.memory.restarts.without_progress + s.memory.restarts.uncounted


def _within_budget(s: Snapshot, fault: Fault) -> Restart | Fail:
    restarts, recovery = counters(s), s.job.recovery
    if len(restarts.counted_at) >= recovery.max_restarts:
        spent = f"{len(restarts.counted_at)} counted within {recovery.window_s} s"
        why = f"no restarts left: {spent}, maxRestarts is {recovery.max_restarts}"
        return Fail("RestartBudgetSpent", f"{fault.sentence}; {why}", fault)
    most = recovery.max_restarts_without_progress
    if restarts.highest_step is not None and restarts.without_progress >= most:
        row = f"{restarts.without_progress} consecutive restarts"
        why = f"{row} completed no step beyond {restarts.highest_step}"
        return Fail("NoProgress", f"{fault.sentence}; {why}", fault)
    if restarts.highest_step is None and (identical := _identical_failures(s, fault)) > most:
        why = f"the same error after each of {identical - 1} consecutive restarts"
        return Fail("NoProgress", f"{fault.sentence}; {why}", fault)
    return Restart(fault, counts=True, replaces=_broken(s))


def _ran_well(s: Snapshot) -> bool:
    began = s.memory.changed_at
    return s.memory.phase == RUNNING and began is not None and s.now - began >= RAN_WELL_S


def _broken(s: Snapshot) -> tuple[tuple[int, str], ...] | None:
    """The pods to replace, or None if the whole job must restart, such as without a survivor."""
    if s.scope != REPLICA:
        return None
    broken = {i: pod.uid for i, pod in blame.faulty(s, isolated_since(s)).items()}
    broken |= dict.fromkeys(s.vanished, "")
    survivors = [i for i, pod in participating(s).items() if i not in broken and not s.succeeded(pod)]
    waits_forever = (0 in broken or _awaits_first(s)) and _needs_done(s)
    too_many = len(broken.keys() | s.memory.private.replacing.keys()) > MAX_REPLACED
    return None if not survivors or waits_forever or too_many else tuple(sorted(broken.items()))


def _restart_without_done(s: Snapshot) -> Restart | None:
    """Restart all pods if a replica was done and left before replica 0 was back: that would wait for ever."""
    if s.scope != REPLICA or not (_awaits_first(s) and _needs_done(s)):
        return None
    why = "another replica was done and left before replica 0 was back"
    return Restart(
        Fault(reason="PeerLost", replica=0, message=why, at=s.now), counts=False, same_incident=True
    )


def _awaits_first(s: Snapshot) -> bool:
    """Whether replica 0 is being replaced, and has not started again."""
    first = s.current.get(0)
    is_here = 0 in s.memory.done if first is None else s.started(first)
    return s.memory.phase == RECOVERING and not is_here


def _needs_done(s: Snapshot) -> bool:
    """Whether a next replica 0 would wait for a replica that is done: its agent waits for all of them."""
    return s.rejoins and (bool(s.memory.done) or any(s.succeeded(pod) for pod in s.current.values()))


def _heals_uncounted(s: Snapshot) -> bool:
    """Whether the last failure that the agents healed is not counted; the ones before it are unknown."""
    healed = blame.in_place_fault(s)
    found = _user_rule(s, healed) if healed else None
    return found is not None and found[0] == "RestartUncounted"


def _user_rule(s: Snapshot, fault: Fault) -> tuple[str, str] | None:
    """The action of the user's first rule that matches, and how to call that rule."""
    for number, rule in enumerate(s.job.recovery.rules):
        if _matches(rule, fault):
            return rule.action, f"rule {rule.name}" if rule.name else f"recovery.rules[{number}]"
    return None


def _action(s: Snapshot, fault: Fault) -> tuple[str, str]:
    """Return the action, and the rule that it comes from."""
    if (found := _user_rule(s, fault)) is not None:
        return found
    if fault.exit_code == blame.BAD_RECIPE and not fault.disruption:
        return "FailJob", "the built-in rule for exit code 78 (bad recipe or arguments)"
    if fault.lacks_program and not fault.disruption and not _has_run(s):
        return "FailJob", "the built-in rule for a program that the image does not have"
    lacks_pod = fault.secondary and _awaits_start(s)
    if fault.reason == blame.STOPPED or fault.disruption or lacks_pod or _is_same_incident(s, fault):
        return "RestartUncounted", "the built-in rule for stops on request and disruptions"
    return "Restart", "the built-in rule for all other failures"


def _awaits_start(s: Snapshot) -> bool:
    """Whether the job does not run because a pod is absent or has not started, as while capacity is missing.

    Programs give up waiting for it: torch by default after 10 minutes with NCCL and 30 with gloo.
    """
    absent = bool(s.missing) or any(pod.phase == "Pending" for pod in s.current.values())
    return absent and s.memory.phase != RUNNING


def _has_run(s: Snapshot) -> bool:
    """Whether a pod of the job has ever run; another node may have an older image under the same tag."""
    is_first = s.memory.phase in ("", PENDING, STARTING) and s.memory.attempt == 0
    return not is_first or any(s.started(pod) and not s.failed(pod) for pod in s.current.values())


def _is_same_incident(s: Snapshot, fault: Fault) -> bool:
    """Whether a rank stopped only because another rank was asked to stop: all ranks stop at an agreed step.

    They do so within the grace period of the pod that is being deleted; a rank that stops later was itself
    asked to. By then the pod may have been replaced, and the job may run again.
    """
    first = s.memory.failure
    began = times.parse(first.get("at"))
    if began is None or fault.disruption or fault.exit_code != blame.STOPPED_CODE:
        return False
    recovering = s.memory.phase == RECOVERING
    asked = first.get("reason") in blame.DISRUPTIONS or (recovering and first.get("reason") == blame.STOPPED)
    return asked and abs(s.now - began) <= s.job.grace_s + CAUSE_WAIT_S


def _is_recorded(s: Snapshot, fault: Fault) -> bool:
    """Whether a pod ended only now because of the failure that is already in the status."""
    if fault.reported_by is None or s.memory.phase != RECOVERING:
        return False
    failure, at = s.memory.failure, times.rfc3339(fault.at)
    return (failure.get("replica"), failure.get("rank"), failure.get("at")) == (fault.replica, fault.rank, at)


def _matches(rule: Rule, fault: Fault) -> bool:
    if (codes := rule.on_exit_codes) is not None:
        name = codes.container_name
        code = dict(fault.exit_codes).get(name) if name else fault.exit_code
        if not code or (code in codes.values) != (codes.operator == "In"):  # code 0 is success
            return False
    wanted = [(each.type, each.status) for each in rule.on_pod_conditions]
    return not wanted or any(condition in fault.conditions for condition in wanted)


def _known_at(s: Snapshot, fault: Fault) -> float:
    """From when a verdict is possible: all is known, or the pods that know more had time to end."""
    if fault.reported_by is None and not fault.secondary:
        return s.now
    pod = s.current.get(fault.replica if fault.reported_by is None else fault.reported_by)
    running = {pod.index for pod in participating(s).values() if not s.succeeded(pod) and not s.failed(pod)}
    if pod is None or pod.seen.exited is None or not running:
        return s.now
    if fault.reported_by is None:
        return s.wall(pod.seen.exited) + CAUSE_WAIT_S
    return s.wall(pod.seen.exited) + CULPRIT_WAIT_S if fault.replica in running else s.now


def _jitter(seed: str) -> float:
    """From -1 to 1, the same for the same seed, so that every reconcile computes the same moment."""
    digest = hashlib.sha256(seed.encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**31 - 1
