"""What happens after each step: the ranks agree on stop, finish, save and log; also the end of training.

The only collective that it adds to a step is the message of agreement.py, which is read one step later.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist

from dtj.checkpoint.objects import Location
from dtj.checkpoint.writer import on_rank0
from dtj.contract import EXIT_SIGNAL, EXIT_STOPPED
from dtj.copies.memory_copies import MemoryCopies
from dtj.parallel.strategy import Strategy
from dtj.ranks import agreement, exchange, stop
from dtj.ranks.agreement import Agreement, Message
from dtj.ranks.process_groups import ProcessGroups
from dtj.step.finite import FiniteCheck
from dtj.step.progress import Progress
from dtj.step.replicas import ReplicaCheck
from dtj.telemetry import heartbeat
from dtj.telemetry.logger import Logger

_NOTHING = Message()


@dataclass(kw_only=True, eq=False)
class Boundary:
    """The work between one step and the next, in agreement with the other ranks.

    logger        of the present loop; None before the first loop
    wants_finish  this rank called run.finish
    """

    groups: ProcessGroups
    strategy: Strategy
    copies: MemoryCopies
    finite: FiniteCheck
    replicas: ReplicaCheck
    progress: Progress
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.logger: Logger | None = None
        self.wants_finish = False
        self._checkpointer = self.copies.checkpointer
        self._save_due = self._copy_due = False
        self._agreement = Agreement(self.groups.control)
        self._sent = (0, 0.0)  # step and time of the last message
        self._next = 0  # step after which the next message is sent
        self._reads_at_once = False  # because steps are long; the same on every rank

    def begin(self, logger: Logger) -> None:
        """Training starts or continues after the present step."""
        self.logger, self.wants_finish = logger, False
        self._sent = (self.progress.step, time.monotonic())

    def counting_operations(self, samples: int) -> contextlib.AbstractContextManager[None]:
        """Context for forward and backward of a step, see `Meter.counting`."""
        return self.logger.meter.counting(samples) if self.logger else contextlib.nullcontext()

    def renew(self) -> None:
        """The process groups were replaced: drop the message that was in flight over the old ones.

        All ranks, also restarted ones, send the next message after the next step.
        """
        self._agreement, self._next = Agreement(self.groups.control), 0
        self._reads_at_once = False
        if self.logger:
            self.logger.forget()

    def after_step(self, epoch: int, is_last: bool) -> None:
        """To be called after the optimizer step. Raises Stopped on all ranks if they agreed on a stop."""
        step = self.progress.step
        heartbeat.mine.stepped(step)
        self.strategy.after_step(step, force=self._checkpointer.has_offer)
        decided = _NOTHING
        if self._reads_at_once and not self._agreement.is_pending:
            self._send()
        if is_last or self._reads_at_once or step > self._sent[0] + self.strategy.max_steps_ahead:
            decided = self._receive()
        if decided.finish:
            self.progress.ends_at, is_last = step, True
        if decided.not_finite:
            self._check_finite()
        self.replicas.after_step(
            step,
            self._checkpointer.parts.user_parts,
            in_sync=self.strategy.in_sync(step),
            group=self.groups.control,
        )
        self._save_due = self._save_due or decided.save or self._checkpointer.is_due(step)
        self._copy_due = self._copy_due or decided.copy or self.copies.is_due(step)
        if (self._save_due or self._copy_due) and not decided.stop and self.strategy.in_sync(step):
            self._keep(step)
        ends = is_last or decided.stop
        self._log(epoch, ends=ends)
        is_due = step >= self._next and not self._reads_at_once
        if (is_due or ends) and not self._agreement.is_pending:
            self._send()
        if ends and self._receive().finish:  # read the message that is still in flight
            self.progress.ends_at = step
        if decided.stop and not is_last:
            self._leave()
        if self.groups.stop and self._stops_alone and not is_last:
            self._stop_unsaved()

    def conclude(self, *, may_wait: bool = False) -> Location | None:
        """Save the final state. Ranks with local steps synchronize first; raises if a loss was not finite.

        may_wait  for space on a full volume, until a stop signal
        """
        self.strategy.after_step(self.progress.step, force=True)
        self._check_weights()
        with heartbeat.mine.saving():
            folder = self._checkpointer.save(
                self.progress.step,
                group=self.groups.control,
                last=True,
                may_wait=lambda: may_wait and not self.groups.stop,
            )
            # Every rank waits here until rank 0 has committed the checkpoint. If rank 0 is lost during the
            # save, its replacement receives the state of another rank and saves it.
            if folder and self.groups.control is not None:
                dist.barrier(group=self.groups.control)
        return folder

    def _keep(self, step: int) -> None:
        """Save or copy the state. A save is copied, too: the copy is never older than the checkpoint."""
        saves, self._save_due, self._copy_due = self._save_due, False, False
        began = time.monotonic()
        self._check_weights()
        with heartbeat.mine.saving():
            if saves:
                self._checkpointer.save(step, group=self.groups.control)
                began = time.monotonic()
            self.copies.copy(step, self.groups.control, began=began)

    def _log(self, epoch: int, *, ends: bool) -> None:
        """Make the line of this step; deliver all lines if they are due, or if training ends."""
        step, feed, logger = self.progress.step, self.progress.feed, self._need_logger()
        delivers = logger.is_due or ends  # the same on all ranks
        logger.end(step, samples=feed.consumed, epoch=epoch, waited_s=feed.waited_s)
        if delivers:
            logger.deliver(agreement.gather(logger.pending(), self.groups.control))
            feed.share(partial(exchange.all_gather_numbers, group=self.groups.control))

    def _send(self) -> None:
        step, logger = self.progress.step, self._need_logger()
        now = time.monotonic()
        interval = agreement.interval(step - self._sent[0], now - self._sent[1])
        self._sent = (step, now)
        self._agreement.start(
            Message(
                stop=bool(self.groups.stop) and not self._stops_alone,
                finish=self.wants_finish,
                save=self._checkpointer.wants_save(),
                copy=self.copies.wants_copy(),
                log=logger.wants_line(),
                not_finite=self.finite.has_seen_one(),
                interval=interval if self.strategy.layout.rank == 0 else 0,  # rank 0 decides
            )
        )

    def _receive(self) -> Message:
        """Read the pending message; an empty message if none is in flight."""
        decided = self._agreement.read()
        if decided is None:
            return _NOTHING
        self._next = self._sent[0] + max(1, decided.interval)
        self._reads_at_once = decided.interval == 0 and not self.strategy.max_steps_ahead
        if decided.log:
            self._need_logger().is_due = True
        return decided

    @property
    def _stops_alone(self) -> bool:
        """Without a checkpoint folder, an agreed stop would lose the state that the other ranks can keep."""
        return self.groups.can_heal and not self._checkpointer.run_dir

    def _leave(self) -> None:
        """Save and raise Stopped; all ranks call it after the same step.

        If the save fails, ranks that were not asked to stop keep the state, and only the others leave.
        """
        is_asked = bool(self.groups.stop)
        some_can_stay = self.groups.can_heal and not all(
            exchange.all_gather_number(is_asked, group=self.groups.control)
        )
        if some_can_stay and not self._could_save():
            if is_asked:
                self._stop_unsaved()
            return
        folder = self.conclude()
        if folder is None:
            self._stop_unsaved()
        self.say(f"stopped at step {self.progress.step}; checkpoint {folder}")
        stop.leave(EXIT_STOPPED)

    def _could_save(self) -> bool:
        """Save the state now; False if rank 0 could not, which the log says then."""
        step = self.progress.step
        self._check_weights()
        with heartbeat.mine.saving():
            folder = self._checkpointer.save(step, group=self.groups.control, at_once=True)
            is_saved = on_rank0(lambda: self._checkpointer.saved_step == step, self.groups.control)
        return folder is None or is_saved  # None: there is nothing to save

    def _stop_unsaved(self) -> None:
        self.say(f"stopped at step {self.progress.step}; nothing was saved")
        stop.leave(EXIT_SIGNAL + (self.groups.stop.signal or 15))

    def _check_weights(self) -> None:
        """Raise on every rank if the state must not be saved."""
        self.strategy.check_unchanged()
        self._check_finite(weights=True)

    def _check_finite(self, *, weights: bool = False) -> None:
        self.finite.check(
            self.groups.control,
            saved=self._checkpointer.saved_step,
            step=self.progress.step,
            weights=self.strategy.parameters if weights else (),
        )

    def _need_logger(self) -> Logger:
        assert self.logger is not None  # `begin` was called
        return self.logger
