"""What does a fault mean for the job?

The first matching rule wins: the user's, then 78 -> FailJob, 75 and disruptions -> RestartUncounted, else
Restart. Restarts that count have two budgets: in all, and in a row without a new step. Where no step is ever
reported only the first applies. What the agents heal in place counts like a restart.

With scope Replica only the pods that are broken are replaced, as long as a survivor can heal them.
"""

import hashlib

from dtj_operator.plan import blame, times
from dtj_operator.plan.actions import Fail, Fault, Restart, Settle
from dtj_operator.plan.snapshot import RECOVERING, REPLICA, SUSPENDED, Restarts, Snapshot
from dtj_operator.spec import Rule

LONGEST_BACKOFF_S = 300.0
JITTER = 0.2  # of the delay, either way: a thousand jobs hit by one outage must not come back in step
MOST_REPLACED = 100  # pods at once; beyond that the whole job begins anew, and the status stays small
SETTLE_S = 5.0  # how long a consequence waits for its cause: the kubelets of two nodes report seconds apart


def restart(s: Snapshot) -> Restart | Fail | Settle | None:
    """Decide what the first fault means; pods that go because of a suspension are none."""
    fault = blame.first_fault(s)
    if fault is None or s.memory.phase == SUSPENDED:
        return None
    if fault.secondary and _cause_may_follow(s, fault):
        return Settle(until=fault.at + SETTLE_S)
    action = _action(s, fault)
    if action == "FailJob":
        return Fail("RecoveryRule", f"{fault.sentence}; not restarted because a FailJob rule matched", fault)
    if action == "RestartUncounted":
        return Restart(fault, counts=False, replaces=_broken(s), goes_on=_goes_on(s, fault))
    return _within_budget(s, fault)


def seen(s: Snapshot) -> Restarts:
    """The counters with the agents' news: heals in place count, and growth ends a row without progress."""
    old = s.memory.restarts
    told = max(s.answer.in_place if s.answer else 0, blame.last_in_place(s))
    healed = max(0, told - old.in_place_now)
    steps = [s.progress.step if s.progress else None, blame.last_step(s)]
    steps += [fault.step for pod in s.current.values() if (fault := blame.fault_of(s, pod))]
    highest = max((step for step in (*steps, old.highest_step) if step is not None), default=None)
    grown = highest != old.highest_step
    return Restarts(
        counted=old.counted + healed,
        disruptions=old.disruptions,
        in_place=old.in_place + healed,
        in_place_now=max(told, old.in_place_now),
        without_progress=0 if grown else old.without_progress + healed,
        highest_step=highest,
    )


def backoff_until(s: Snapshot) -> float:
    """When the present attempt may have its pods: at once, unless it follows a restart that may repeat."""
    if s.memory.phase != RECOVERING or s.memory.changed_at is None or _is_first_of_its_kind(s):
        return s.now
    doublings = min(max(s.memory.restarts.without_progress - 1, 0), 30)
    delay = min(LONGEST_BACKOFF_S, s.job.recovery.backoff_s * 2.0**doublings)
    if s.memory.changed_at > s.now + delay:
        return s.now  # the clock was set back since: the delay has no beginning any more
    so_far = s.memory.restarts.counted + s.memory.restarts.disruptions
    return s.memory.changed_at + delay * (1 + JITTER * _spread(f"{s.job.uid}/{s.memory.attempt}/{so_far}"))


def _is_first_of_its_kind(s: Snapshot) -> bool:
    """Whether a job that was well lost a pod to somebody else, or a rank after it had made progress.

    A job is well again once all its pods run, so that even a pod that is taken away each time is not made
    anew faster than kubelets start it.
    """
    healthy, failure, restarts = s.memory.condition("Healthy"), s.memory.failure, s.memory.restarts
    was_well = healthy is not None and times.parse(healthy["lastTransitionTime"]) == s.memory.changed_at
    taken_away = failure.get("reason") in blame.DISRUPTIONS
    # Whoever stops of its own accord is not counted, and may do so for ever.
    stopped = failure.get("exitCode") == blame.STOPPED
    progressed = restarts.highest_step is not None and restarts.without_progress <= 1 and not stopped
    return was_well and (taken_away or progressed)


def _within_budget(s: Snapshot, fault: Fault) -> Restart | Fail:
    restarts, recovery = seen(s), s.job.recovery
    if restarts.counted >= recovery.max_restarts:
        return Fail(
            "RestartBudgetSpent",
            f"{fault.sentence}; no restarts left: maxRestarts is {recovery.max_restarts}",
            fault,
        )
    stuck = (
        restarts.highest_step is not None
        and restarts.without_progress >= recovery.max_restarts_without_progress
    )
    if stuck:
        row = f"{restarts.without_progress} consecutive restarts"
        why = f"{row} completed no step beyond {restarts.highest_step}"
        return Fail("NoProgress", f"{fault.sentence}; {why}", fault)
    return Restart(fault, counts=True, replaces=_broken(s))


def _broken(s: Snapshot) -> tuple[tuple[int, str], ...] | None:
    """What to replace, or None where the whole job must begin anew: nobody is left to heal from."""
    if s.scope != REPLICA:
        return None
    broken = {i: pod.uid for i, pod in s.current.items() if blame.fault_of(s, pod)}
    broken |= dict.fromkeys(s.vanished, "")
    survivors = [i for i, pod in s.taking_part.items() if i not in broken and not s.succeeded(pod)]
    if not survivors or len(broken.keys() | s.memory.replacing.keys()) > MOST_REPLACED:
        return None
    return tuple(sorted(broken.items()))


def _action(s: Snapshot, fault: Fault) -> str:
    for rule in s.job.recovery.rules:
        if _matches(rule, fault):
            return rule.action
    if fault.exit_code == blame.BAD_RECIPE and not fault.disruption:
        return "FailJob"
    if fault.exit_code == blame.STOPPED or fault.disruption:
        return "RestartUncounted"
    return "Restart"


def _goes_on(s: Snapshot, fault: Fault) -> bool:
    """Whether a rank stopped because another one was asked to: agents agree on the step, and all stop there.

    They have the grace period of the pod that is taken away; whoever stops later was asked himself. The pod
    may have been replaced by then, and the job may run again.
    """
    first = s.memory.failure
    began = times.parse(first.get("at"))
    if began is None or fault.disruption or fault.exit_code != blame.STOPPED:
        return False
    recovering = s.memory.phase == RECOVERING
    asked = first.get("reason") in blame.DISRUPTIONS or (
        recovering and first.get("exitCode") == blame.STOPPED
    )
    return asked and abs(s.now - began) <= s.job.grace_s + SETTLE_S


def _matches(rule: Rule, fault: Fault) -> bool:
    if rule.exit_codes is not None and fault.exit_code is None:
        return False
    if rule.exit_codes is not None and (fault.exit_code in rule.exit_codes) != rule.codes_listed:
        return False
    return not rule.conditions or any(wanted in fault.conditions for wanted in rule.conditions)


def _cause_may_follow(s: Snapshot, fault: Fault) -> bool:
    """Whether a pod is still on its way to an end, and the consequence is fresh by any sane clock."""
    undecided = any(not s.succeeded(pod) and not s.failed(pod) for pod in s.taking_part.values())
    return undecided and abs(s.now - fault.at) < SETTLE_S


def _spread(seed: str) -> float:
    """From -1 to 1, the same for the same attempt, so that every look gives the same moment."""
    digest = hashlib.sha256(seed.encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**31 - 1
