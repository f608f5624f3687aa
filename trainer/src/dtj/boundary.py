"""Between two steps: what the ranks agree on there (stop, finish, save, log), and the end of training.

It adds no collective to a step but the message of agreement.py, which is read a step after it was sent.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from dtj import agreement
from dtj.agreement import Agreement, Message
from dtj.checkpoint.checkpointer import Checkpointer
from dtj.contract import EXIT_SIGNAL, EXIT_STOPPED
from dtj.errors import Stopped
from dtj.parallel.strategy import Strategy
from dtj.process_groups import ProcessGroups
from dtj.progress import Progress
from dtj.step.finite import FiniteCheck
from dtj.step.replicas import ReplicaCheck
from dtj.stop import StopFlag
from dtj.telemetry import heartbeat
from dtj.telemetry.logger import Logger


class Boundary:
    """What is under way between the ranks from one step to the next.

    logger    what becomes of logged values; None until training begins
    finishes  this rank wants training to end here
    """

    def __init__(
        self,
        *,
        groups: ProcessGroups,
        stop: StopFlag,
        strategy: Strategy,
        checkpointer: Checkpointer,
        finite: FiniteCheck,
        replicas: ReplicaCheck,
        progress: Progress,
        say: Callable[[str], None],
    ) -> None:
        self.logger: Logger | None = None
        self.finishes = False
        self._save_due = False
        self._groups = groups
        self._stop = stop
        self._strategy = strategy
        self._checkpointer = checkpointer
        self._finite = finite
        self._replicas = replicas
        self._progress = progress
        self._say = say
        self._agreement = Agreement(groups.control)
        self._sent = (0, 0.0)  # step and time of the last one
        self._next = 0

    def begin(self, logger: Logger) -> None:
        """Training goes on from the present step."""
        self.logger, self.finishes = logger, False
        self._sent = (self._progress.step, time.monotonic())

    def counting_operations(self, samples: int) -> contextlib.AbstractContextManager[None]:
        """Around forward and backward of a step, see `Meter.counting`."""
        return self.logger.meter.counting(samples) if self.logger else contextlib.nullcontext()

    def renew(self) -> None:
        """The process groups are new ones: what was under way over the old is lost."""
        self._agreement = Agreement(self._groups.control)
        if self.logger:
            self.logger.forget()

    def after_step(self, *, epoch: int, is_last: bool) -> None:
        """The optimizer has done the step. Raises Stopped, on all ranks alike, where a stop was agreed on."""
        step = self._progress.step
        heartbeat.mine.stepped(step)
        self._strategy.after_step(step)
        decided = Message()
        if is_last or step > self._sent[0] + self._strategy.max_steps_ahead:
            decided = self._receive()
        if decided.finish:
            self._progress.ends_at, is_last = step, True
        if decided.broken:
            self._check_finite()
        self._replicas.after_step(
            step,
            self._checkpointer.parts.user_parts,
            in_sync=self._strategy.in_sync(step),
            group=self._groups.control,
        )
        self._save_due = self._save_due or decided.save or self._checkpointer.is_due(step)
        if self._save_due and not decided.stop and self._strategy.in_sync(step):
            self._save_due = False
            self._check_finite()
            with heartbeat.mine.paused():
                self._checkpointer.save(step, group=self._groups.control)
        is_due = step >= self._next or self._need_logger().is_due or decided.stop
        if is_due and not self._agreement.is_under_way:
            self._send(epoch)
        if (is_last or decided.stop) and self._receive().finish:  # the last words are not left in the air
            self._progress.ends_at = step
        if decided.stop and not is_last:
            self._leave()
        if self._stop and self._leaves_alone and not is_last:
            self._stop_unsaved()

    def conclude(self) -> Path | None:
        """Save the state that the run ends with; ranks that trained alone synchronize, NaN is not saved."""
        self._strategy.after_step(self._progress.step, force=True)
        self._check_finite()
        with heartbeat.mine.paused():
            folder = self._checkpointer.save(self._progress.step, group=self._groups.control, last=True)
            # Nobody claims a checkpoint that rank 0 has not committed, and nobody leaves before: should rank
            # 0 be lost in the save, its successor gets the state of the others and saves it.
            if folder and self._groups.control is not None:
                dist.barrier(group=self._groups.control)
        return folder

    def _send(self, epoch: int) -> None:
        step, feed, logger = self._progress.step, self._progress.need_feed(), self._need_logger()
        now = time.monotonic()
        interval = agreement.interval(step - self._sent[0], now - self._sent[1])
        self._sent = (step, now)
        self._agreement.start(
            Message(
                stop=bool(self._stop) and not self._leaves_alone,
                finish=self.finishes,
                save=self._checkpointer.wants_save(),
                log=logger.wants_line(),
                broken=self._finite.has_seen_one(),
                interval=interval if self._strategy.layout.rank == 0 else 0,  # rank 0's clock counts
                values=logger.end(step, samples=feed.consumed, epoch=epoch, waited_s=feed.waited_s),
            )
        )

    def _receive(self) -> Message:
        """What came of the message before; nothing new where none is under way."""
        decided = self._agreement.read()
        if decided is None:
            return Message()
        self._next = self._sent[0] + decided.interval
        self._need_logger().receive(decided.values, log=decided.log)
        return decided

    @property
    def _leaves_alone(self) -> bool:
        """Nothing would be saved, so a stop of all would only lose what the others can keep in memory."""
        return self._groups.can_heal and not self._checkpointer.run_dir

    def _leave(self) -> None:
        """All ranks are here, after the same step."""
        folder = self.conclude()
        if folder is None:
            self._stop_unsaved()
        self._say(f"stopped at step {self._progress.step}; checkpoint {folder}")
        raise Stopped(EXIT_STOPPED)

    def _stop_unsaved(self) -> None:
        self._say(f"stopped at step {self._progress.step}; nothing was saved")
        raise Stopped(EXIT_SIGNAL + (self._stop.signal or 15))

    def _check_finite(self) -> None:
        self._finite.check(self._groups.control, saved=self._checkpointer.saved_step)

    def _need_logger(self) -> Logger:
        assert self.logger is not None  # `begin` came first
        return self.logger
