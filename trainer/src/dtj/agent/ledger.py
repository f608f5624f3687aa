"""Seconds of a job by what they were good for. Pure: all times are seconds of one clock that goes forward.

startup     until the first step is done
productive  steps that moved the run beyond where it had been
lost        steps, and parts of one, that had to be done again
recovering  from a fault until the next step is done

A step is told of some time after it was done, perhaps after a later fault: what counts is when it was done.
"""

from dataclasses import dataclass, field

KINDS = ("productive", "startup", "lost", "recovering")


@dataclass(kw_only=True)
class Ledger:
    """Every second since its making is in exactly one of the kinds; `since` is the end of the last step."""

    since: float
    best_step: int = -1
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    _has_begun: bool = False
    _broke_at: float | None = None  # the first fault since the last step
    _formed_at: float | None = None  # the ranks came together again after it

    def stepped(self, step: int, at: float) -> None:
        """The job completed this step then; the time since the one before went into it."""
        at = max(at, self.since)
        if self._broke_at is None:
            self._book(self._kind(step), at)
        elif self._formed_at is None or at < self._formed_at:  # the last one before the ranks parted
            self._book(self._kind(step), at)
            self._broke_at = max(self._broke_at, at)
        else:
            self._book("lost", self._broke_at)
            self._book("recovering", at)
            self._broke_at = None
        self._has_begun = True
        self.best_step = max(self.best_step, step)

    def fault(self, at: float) -> None:
        """Something broke: the step under way is lost, and until the next one the job recovers."""
        if self._has_begun and self._broke_at is None:
            self._broke_at, self._formed_at = max(at, self.since), None

    def formed(self, at: float) -> None:
        """The ranks come together; what was done before is of the time before the fault."""
        self._formed_at = at

    def at(self, now: float) -> dict[str, float]:
        """The books as they would stand if the present step ended now."""
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
