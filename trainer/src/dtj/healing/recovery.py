"""Runs the collective verbs of `Run` so that they survive the loss of a rank: repeated or skipped.

`run.py` defines what a verb does and how to undo it. `process_groups.py` joins the next process groups, and
`handover.py` finds out which ranks are behind and hands over the state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from dtj.checkpoint.checkpointer import Checkpointer
from dtj.contract import EXIT_PEER_LOST
from dtj.errors import DtjError, Stopped
from dtj.healing.handover import NO_STATE, Handover, ProgramPoint
from dtj.ranks.process_groups import ProcessGroups
from dtj.step.progress import Progress
from dtj.telemetry import report_pipe
from dtj.telemetry.say import say

T = TypeVar("T")


@dataclass(kw_only=True, eq=False)
class Recovery:
    """Keeps this rank in step with the others when one of them is lost and replaced.

    on_new_groups  called when the process groups were replaced, before anything is sent over the new ones
    save_alone     saves the state that this rank holds, without the other ranks
    """

    groups: ProcessGroups
    checkpointer: Checkpointer
    progress: Progress
    on_new_groups: Callable[[], None]
    save_alone: Callable[[], object]

    def __post_init__(self) -> None:
        self._handover = Handover()
        self._has_state = False  # this rank holds the state that belongs to its point in the program
        self._is_evaluating = False  # the weights may be others than those of the step
        self._results: dict[int, Any] = {}  # of the verbs since the last step

    @property
    def is_behind(self) -> bool:
        """The other ranks wait at a later point; until there, this rank skips the model and collectives."""
        return self._handover.target is not None and self._handover.is_behind(self._point)

    def run_verb(
        self,
        verb: Callable[[], T],
        *,
        skip: Callable[[], Any] = lambda: None,
        rollback: Callable[[], None] | None = None,
        is_evaluation: bool = False,
    ) -> T:
        """Run a collective verb; repeat it if a rank was lost, skip it if the others have done it already.

        skip      called if the verb is skipped; its result counts if that of the other ranks is not known.
                  Not needed for a verb without a result
        rollback  undoes a failed attempt, before the verb is repeated
        is_evaluation  the program may have exchanged the weights for it, as EMA.applied does
        """
        self._is_evaluating = is_evaluation
        while True:
            self.hand_over()
            if self.is_behind:
                unknown, known = skip(), self._handover.result_at(self._point)
                result: T = unknown if known is None else known
                break
            try:
                result = verb()
                break
            except RuntimeError as error:
                if rollback and self.groups.can_heal:
                    rollback()
                self.rejoin(error)
        if self.groups.can_heal:
            if self.progress.verb == 0:
                self._results = {}
            self._results[self.progress.verb] = result
        self.progress.verb += 1
        return result

    def between_steps(self, after_step: Callable[[int, bool], None], epoch: int, is_last: bool) -> None:
        """Do the work after a step, unless the other ranks have done it already; it is not repeated.

        A rank that has just reached the point where they wait takes over their state first.
        """
        self._is_evaluating = False
        if self._handover.target is None:
            try:
                after_step(epoch, is_last)
            except RuntimeError as error:
                self.rejoin(error)

    def joins_survivors(self) -> bool:
        """Other ranks hold the state in memory; this rank receives it at the point where they wait."""
        if self.groups.is_healing:
            self._compare()
        return self.groups.is_healing

    def mark_restored(self) -> None:
        """This rank has restored its checkpoint, or there is none: its state is complete."""
        self._has_state = True

    def report_state(self) -> None:
        """Report to the agent that this rank holds the state: it can keep running if another rank is lost."""
        if self._has_state and self.groups.can_heal and self.checkpointer.parts.user_parts:
            report_pipe.send({"hold": True}, wait_s=1.0)

    def give_up_healing(self) -> None:
        """From now on a lost rank ends all ranks: the program runs collectives that cannot be repeated."""
        if self.groups.can_heal:
            self.groups.in_place = False
            report_pipe.send({"hold": False}, wait_s=1.0)

    def hand_over(self) -> None:
        """If this rank is at the point of the handover: send the state, or take it over."""
        while self._handover.target is not None and not self.is_behind:
            try:
                taken = self._handover.exchange(
                    self._control, state=lambda: self.checkpointer.whole_state(self.progress.step)
                )
                if taken is not None:
                    self.checkpointer.load_whole_state(taken)
                    self._has_state = True
                    self.report_state()
            except RuntimeError as error:
                self.rejoin(error)

    def rejoin(self, error: RuntimeError) -> None:
        """Join the next generation and compare points; raise `error` if it does not come from a lost peer."""
        while True:
            try:
                self.groups.reform(error)
            except Stopped:
                self._save_before_stop()
                raise
            try:
                self.on_new_groups()
                self.progress.needs_warm_up = self.progress.step > 0
                self._compare()
            except RuntimeError as another:
                error = another
            else:
                return

    def _save_before_stop(self) -> None:
        """The other ranks may lose theirs, too. After the first verb of a step the state may have changed.

        Rank 0 may be lost, alone or with its pod: so another rank of its pod saves too, and one of the next.
        """
        world, checkpointer = self.groups.world, self.checkpointer
        if world.rank not in {0, 1, world.local_size}:
            return
        if self._has_state and self.progress.verb == 0 and not self._is_evaluating:
            if world.rank > 0:
                checkpointer.act_for_rank_0()
            try:
                self.save_alone()
            except DtjError as error:
                say(error)
        saved = checkpointer.saved_step
        rest = "nothing was saved" if saved is None else f"the newest checkpoint is of step {saved}"
        say(f"stopped at step {self.progress.step}; {rest}")

    @property
    def _point(self) -> ProgramPoint:
        progress = self.progress
        return ProgramPoint(
            progress.loops, progress.step, progress.is_over, progress.verb, progress.feed.position
        )

    def _compare(self) -> None:
        """Compare points with the other ranks; SystemExit if the last rank with the state is lost."""
        point = self._point if self._has_state else NO_STATE
        target = self._handover.compare(point, self._control, results=self._results)
        if target is None:
            raise SystemExit(EXIT_PEER_LOST)
        if target.is_over:
            self.progress.ends_at = target.step
        if not self._has_state:
            self.progress.step, self.progress.verb = target.step, 0
            self.progress.feed.position = target.data_position
            self.progress.needs_warm_up = target.step > 0
        elif self.is_behind:
            self._has_state = False
            report_pipe.send({"hold": False})

    @property
    def _control(self) -> "dist.ProcessGroup":
        assert self.groups.control is not None  # never called with a single process
        return self.groups.control
