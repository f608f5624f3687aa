"""Splits a job's seconds by their use, for goodput. Pure: all times are seconds of one monotonic clock.

startup     until the first step is completed
productive  steps that moved the run beyond its best step so far
lost        steps, and parts of a step, that had to be repeated
recovering  from a fault until the next step is completed

A step is reported some time after its completion, perhaps after a later fault: its completion time counts.
"""

from dataclasses import dataclass, field

KINDS = ("productive", "startup", "lost", "recovering")


@dataclass(kw_only=True)
class Ledger:
    """Every second since its creation is in exactly one kind; `since` is the end of the last step."""

    since: float
    best_step: int = -1
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    _has_begun: bool = False
    _broke_at: float | None = None  # the first fault since the last step
    _formed_at: float | None = None  # when the ranks formed again after it

    def stepped(self, step: int, at: float) -> None:
        """The job completed this step at `at`; the time since the previous step went into it."""
        at = max(at, self.since)
        if self._broke_at is None:
            self._book(self._kind(step), at)
        elif self._formed_at is None or at < self._formed_at:  # completed before the fault, reported after it
            self._book(self._kind(step), at)
            self._broke_at = max(self._broke_at, at)
        else:
            self._book("lost", self._broke_at)
            self._book("recovering", at)
            self._broke_at = None
        self._has_begun = True
        self.best_step = max(self.best_step, step)

    def fault(self, at: float) -> None:
        """Something broke: the step in progress is lost, and the job recovers until the next step."""
        if self._has_begun and self._broke_at is None:
            self._broke_at, self._formed_at = max(at, self.since), None

    def forget_fault(self) -> None:
        """Nothing broke after all: the ranks worked on."""
        if self._formed_at is None:
            self._broke_at = None

    def formed(self, at: float) -> None:
        """The ranks form again; steps completed before this belong to the time before the fault."""
        self._formed_at = at

    def at(self, now: float) -> dict[str, float]:
        """The seconds of each kind, if the current step ended now."""
        found = dict(self.seconds)
        if self._broke_at is None:
            found["productive" if self._has_begun else "startup"] += now - self.since
        else:
            found["lost"] += self._broke_at - self.since
            found["recovering"] += now - self._broke_at
        return found

    def _kind(self, step: int) -> str:
        if not self._has_begun:
            return "startup"
        return "productive" if step > self.best_step else "lost"

    def _book(self, kind: str, until: float) -> None:
        self.seconds[kind] += until - self.since
        self.since = until
