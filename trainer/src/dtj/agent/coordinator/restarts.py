"""May ranks that failed start again, and when? What the coordinator counts for `spec.recovery`. Pure.

    membership.py finds the cause of a failure  ->  a restart that counts, at once or later, or none is left

All restarts within a window count, and those in a row without progress. Progress is a step beyond the best
one, or a life of a plain program that trains. A program without steps makes none if it repeats its error.
The operator decides likewise about pods, in plan/policies/restart.py.
"""

from dataclasses import dataclass, field, replace

from dtj.agent.wire.outcome import Ending, error_number
from dtj.agent.wire.protocol import CoordinatorState, RestartBudget

# A life of a program that reports no steps is progress if it trains for this long: its optimizer may count
# from 1 again, so it is not known whether it continues from a checkpoint.
LIFE_STEPS = 10  # beyond its first
LIFE_S = 2.0  # after its first step
# Without steps, not even of an optimizer, only time shows that a life was progress.
RAN_WELL_S = 600.0
_MAX_BACKOFF_S = 300.0


@dataclass(kw_only=True)
class Restarts:
    """Knows when what was counted; how much is in `CoordinatorState`, which outlives this coordinator."""

    budget: RestartBudget
    _spent_at: list[float] = field(default_factory=list)  # in-place restarts that may still count
    _failed_at: float | None = None  # when the last failure was counted
    _first_step: tuple[int, float] | None = None  # of rank 0 in this generation, and when

    def used(self, now: float) -> int:
        """In-place restarts of this attempt that count towards the budget now."""
        window_s = self.budget.window_s
        if window_s is not None:
            self._spent_at = [at for at in self._spent_at if now - at < window_s]
        return self.budget.spent + len(self._spent_at)

    def remember(self, count: int, now: float) -> None:
        """An earlier coordinator has counted so many that the operator did not know of."""
        self._spent_at += [now] * count

    def allow(self, in_all: int, known: CoordinatorState, now: float) -> None:
        """The operator allows so many in this attempt, without those that it has counted meanwhile."""
        left = max(0, in_all - known.in_place)
        self.budget = replace(self.budget, restarts=self.used(now) + left)

    def start_generation(self) -> None:
        """The ranks begin another life."""
        self._first_step = None

    def stepped(
        self, known: CoordinatorState, step: int, now: float, *, is_counted: bool
    ) -> CoordinatorState:
        """Rank 0 completed a step; see `Heartbeat.is_counted`."""
        first, began = self._first_step = self._first_step or (step, now)
        best, row = known.best_step, known.without_progress
        trains = is_counted and step - first >= LIFE_STEPS and now - began >= LIFE_S
        if best is None or step > best or (trains and row):
            return replace(known, best_step=max(step, best or 0), without_progress=0)
        return known

    def spent(self, known: CoordinatorState, culprit: Ending, now: float) -> str | None:
        """Why none is left, empty if none was allowed; None if one is. `known` is without this failure."""
        if self.used(now) >= self.budget.restarts:
            return f"{self.used(now)} of {self.budget.restarts} are used" if self.budget.restarts else ""
        row = self._identical(known, culprit, now) if known.best_step is None else known.without_progress + 1
        return f"{row} failures in a row without progress" if row > self.budget.without_progress else None

    def count(self, known: CoordinatorState, culprit: Ending, now: float) -> CoordinatorState:
        """The ranks start again after this failure."""
        self._spent_at.append(now)
        counted, row = known.in_place + 1, known.without_progress + 1
        return replace(self.count_error(known, culprit, now), in_place=counted, without_progress=row)

    def count_error(self, known: CoordinatorState, culprit: Ending, now: float) -> CoordinatorState:
        """The program failed with this error."""
        identical = self._identical(known, culprit, now)
        self._failed_at = now
        return replace(known, error=error_number(culprit), identical=identical)

    def backoff_s(self, known: CoordinatorState) -> float:
        """Delay of the next generation: 0 after the first failure since progress."""
        row = row_of(known)
        return float(min(_MAX_BACKOFF_S, self.budget.backoff_s * 2.0 ** min(row - 1, 30))) if row > 1 else 0.0

    def _identical(self, known: CoordinatorState, culprit: Ending, now: float) -> int:
        """How often in a row, with this failure, the program ended with this error and without a step."""
        error = error_number(culprit)
        if error == 0 or known.best_step is not None:
            return 0
        ran_well = self._failed_at is not None and now - self._failed_at >= RAN_WELL_S
        return 1 if ran_well or error != known.error else known.identical + 1


def row_of(known: CoordinatorState) -> int:
    """Failures in a row that are known to have made no progress."""
    return known.identical if known.best_step is None else known.without_progress
