"""Between two steps: what the ranks agree on there (stop, save, log), and the end of training.

It adds no collective to a step but the pulse (watch/pulse.py), which is read a step after it was sent.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from dtj.checkpoint.keeper import Keeper
from dtj.contract import EXIT_SIGNAL, EXIT_STOPPED
from dtj.errors import Stopped
from dtj.parallel.strategy import Strategy
from dtj.progress import Progress
from dtj.stop import StopFlag
from dtj.team import Team
from dtj.watch import board, pulse
from dtj.watch.diary import Diary
from dtj.watch.finite import FiniteWatch


class Boundary:
    """What is under way between the ranks from one step to the next.

    rank      of this process; rank 0's clock counts
    diary     what becomes of logged values; None until training begins
    save_due  this rank wants the state saved after this step
    """

    def __init__(
        self,
        *,
        rank: int,
        team: Team,
        stop: StopFlag,
        strategy: Strategy,
        keeper: Keeper,
        finite: FiniteWatch,
        progress: Progress,
        say: Callable[[str], None],
    ) -> None:
        self.diary: Diary | None = None
        self.save_due = False
        self._rank = rank
        self._team = team
        self._stop = stop
        self._strategy = strategy
        self._keeper = keeper
        self._finite = finite
        self._progress = progress
        self._say = say
        self._pulse = pulse.Pulse(team.control)
        self._pulsed = (0, 0.0)  # step and time of the last one
        self._next_pulse = 0

    def begin(self, diary: Diary) -> None:
        """Training goes on from the present step."""
        self.diary = diary
        self._pulsed = (self._progress.step, time.monotonic())

    def renew(self) -> None:
        """The process groups are new ones: what was under way over the old is lost."""
        self._pulse = pulse.Pulse(self._team.control)
        if self.diary:
            self.diary.forget()

    def pass_over(self, *, epoch: int, is_last: bool) -> None:
        """The optimizer has done the step. Raises Stopped, on all ranks alike, where a stop was agreed on."""
        step = self._progress.step
        board.mine.stepped(step)
        self._strategy.after_step(step)
        agreed = pulse.Agreement()
        if step > self._pulsed[0] + self._strategy.slack:
            agreed = self._hear()
        if agreed.broken:
            self._check_finite()
        self.save_due = self.save_due or agreed.save or self._keeper.is_due(step)
        if self.save_due and not agreed.stop and self._strategy.is_together(step):
            self.save_due = False
            self._check_finite()
            with board.mine.paused():
                self._keeper.save(step)
        is_due = step >= self._next_pulse or self._need_diary().is_due or agreed.stop
        if is_due and not self._pulse.is_under_way:
            self._send(epoch)
        if is_last or agreed.stop:  # the last words are not left in the air
            self._hear()
        if agreed.stop and not is_last:
            self._leave()
        if self._stop and self._leaves_alone and not is_last:
            self._stop_unsaved()

    def conclude(self) -> Path | None:
        """Save the state that the run ends with; ranks that trained alone meet, nothing broken is saved."""
        self._strategy.after_step(self._progress.step, force=True)
        self._check_finite()
        with board.mine.paused():
            return self._keeper.save(self._progress.step, last=True)

    def _send(self, epoch: int) -> None:
        step, feed, diary = self._progress.step, self._progress.need_feed(), self._need_diary()
        now = time.monotonic()
        pause = pulse.pause(step - self._pulsed[0], now - self._pulsed[1])
        self._pulsed = (step, now)
        self._pulse.start(
            pulse.Wishes(
                stop=bool(self._stop) and not self._leaves_alone,
                save=self._keeper.wants_save(),
                log=diary.wants_line(),
                broken=self._finite.has_seen_one(),
                pause=pause if self._rank == 0 else 0,
                values=diary.end(step, samples=feed.consumed, epoch=epoch, waited_s=feed.waited_s),
            )
        )

    def _hear(self) -> pulse.Agreement:
        """What came of the pulse before; nothing new where none is under way."""
        agreed = self._pulse.read()
        if agreed is None:
            return pulse.Agreement()
        self._next_pulse = self._pulsed[0] + agreed.pause
        self._need_diary().hear(agreed.values, log=agreed.log)
        return agreed

    @property
    def _leaves_alone(self) -> bool:
        """Nothing would be saved, so a stop of all would only lose what the others can keep in memory."""
        return self._team.can_heal and not self._keeper.run_dir

    def _leave(self) -> None:
        """All ranks are here, after the same step."""
        folder = self.conclude()
        if self._team.control is not None:  # no rank may claim a checkpoint that rank 0 has not committed
            dist.barrier(group=self._team.control)
        if folder is None:
            self._stop_unsaved()
        self._say(f"stopped at step {self._progress.step}; checkpoint {folder}")
        raise Stopped(EXIT_STOPPED)

    def _stop_unsaved(self) -> None:
        self._say(f"stopped at step {self._progress.step}; nothing was saved")
        raise Stopped(EXIT_SIGNAL + (self._stop.signal or 15))

    def _check_finite(self) -> None:
        self._finite.check(self._team.control, saved=self._keeper.saved_step)

    def _need_diary(self) -> Diary:
        assert self.diary is not None  # `begin` came first
        return self.diary
