"""Run: the verbs for those who own their loop. `loop.py` shows all of them in use.

    init -> parallel -> data -> state -> for batch in steps: backward, log

Every rank calls the same verbs in the same order. Nothing here waits for the accelerator but a logged step.
"""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import default_collate

from dtj import random_state
from dtj.boundary import Boundary
from dtj.checkpoint import weights
from dtj.checkpoint.checkpointer import Checkpointer
from dtj.checkpoint.parts import Stateful
from dtj.data.feed import Batch, Feed
from dtj.data.feed import feed as make_feed
from dtj.data.loader import Collate, Loader
from dtj.data.splitter import Splitter
from dtj.errors import RecipeError
from dtj.parallel.strategy import Strategy, blocks
from dtj.process_groups import ProcessGroups
from dtj.progress import Progress, count_of_steps
from dtj.recovery import Recovery
from dtj.settings import Settings
from dtj.step import backward as step_backward
from dtj.step import evaluate as step_evaluate
from dtj.step import memory
from dtj.step.finite import FiniteCheck
from dtj.step.precision import Precision
from dtj.step.replicas import ReplicaCheck
from dtj.stop import StopFlag
from dtj.telemetry import heartbeat, report_pipe
from dtj.telemetry.logger import Logger
from dtj.telemetry.metrics import Meter
from dtj.world import World

Module = TypeVar("Module", bound=nn.Module)


class Run:
    """One training run as seen from one rank.

    device   where samples go and losses are
    devices  of this rank, `device` first; more than one with --devices
    """

    def __init__(
        self,
        *,
        world: World,
        devices: tuple[torch.device, ...],
        groups: ProcessGroups,
        settings: Settings,
        stop: StopFlag,
        seed: int,
        strategy: Strategy,
        precision: Precision,
    ) -> None:
        self.world = world
        self.device, self.devices = devices[0], devices
        self._groups = groups
        self._settings = settings
        self._seed = seed
        self._strategy = strategy
        self._precision = precision
        self._tokens: int | None = None
        self._no_loss = torch.zeros((), device=self.device)
        self._finite = FiniteCheck(self.device)
        self._progress = Progress()
        self._checkpointer = Checkpointer(
            settings=settings,
            world=world,
            strategy=strategy,
            clock=time.monotonic,
            say=self.say,
        )
        if precision.scales:
            self._checkpointer.parts.internal_parts["precision"] = precision
        self._boundary = Boundary(
            groups=groups,
            stop=stop,
            strategy=strategy,
            checkpointer=self._checkpointer,
            finite=self._finite,
            replicas=ReplicaCheck(settings.check_every, optimizers=strategy.same_optimizer_state),
            progress=self._progress,
            say=self.say,
        )
        self._recovery = Recovery(
            groups=groups,
            checkpointer=self._checkpointer,
            progress=self._progress,
            on_new_groups=self._take_new_groups,
            say=self.say,
        )

    @property
    def rank(self) -> int:
        """This process, from 0."""
        return self.world.rank

    @property
    def size(self) -> int:
        """Processes in all."""
        return self.world.size

    @property
    def step(self) -> int:
        """Steps that are done."""
        return self._progress.step

    def parallel(self, model: Module) -> Module:
        """The model on this rank's device, spread over the ranks as the flags say (--parallel, --mesh).

        One whose parts already lie on several devices (see `devices`) stays where it is.
        """
        if self._settings.weights and not self._strategy.models:
            weights.assign(model, Path(self._settings.weights))
        layers = blocks(model)
        if self._settings.recompute:
            memory.recompute(layers or [model])
        if self._settings.compile:
            memory.compile_in_place(layers or [model], self.device)
        # Called and trained like the model that went in.
        return self._strategy.add(model, is_healing=self._groups.is_healing)  # type: ignore[return-value]

    def data(
        self,
        dataset: Any,
        *,
        global_batch: int,
        shuffle: bool = True,
        collate: Collate = default_collate,
        tokens: int | None = None,
    ) -> Feed:
        """Feed `steps` from a data set, every sample exactly once an epoch at any world size.

        dataset       map-style (`__len__` and `__getitem__`), or a stream (`__iter__`), see data/stream.py
        global_batch  samples of one step over all ranks; the result does not depend on how many share it
        shuffle       anew in each epoch; a stream keeps its own order
        collate       list of samples -> what the loss gets; by default stacked tensors of the same structure
        tokens        of one sample, where it is text: the log then has tokens a second
        """
        if self._progress.feed:
            raise RecipeError(
                "run.data was called twice", fix="join the data sets: torch.utils.data.ConcatDataset"
            )
        self._tokens = tokens
        self._progress.feed = self._feed_of(
            dataset,
            global_batch=global_batch,
            splitter=self._splitter(
                micro_batch=self._settings.micro_batch,
                in_lockstep=self._strategy.in_lockstep,
                pipeline_micro_batches=self._strategy.pipeline_micro_batches,
            ),
            seed=self._seed,
            shuffle=shuffle,
            collate=collate,
        )
        return self._progress.feed

    def state(self, **parts: Stateful) -> None:
        """Name what a checkpoint holds; if there is one, it is restored right here.

        Each part has state_dict and load_state_dict. The step comes without being named.
        """
        if self._checkpointer.parts.user_parts:
            raise RecipeError("run.state was called twice", fix="name all parts in one call")
        self._checkpointer.parts.register(
            {
                name: self._strategy.unwrap(part) if isinstance(part, nn.Module) else part
                for name, part in parts.items()
            }
        )
        if self._strategy.extra:
            self._checkpointer.parts.internal_parts["sync"] = self._strategy.extra
        if not self._checkpointer.run_dir:
            self.say("no checkpoint folder is set: state is in memory only and lost when the job ends")
        if self._recovery.joins():
            return
        restored = self._checkpointer.restore(self._groups.control)
        if restored is not None:
            self._progress.step = restored
            self._progress.needs_warm_up = self._strategy.needs_warm_up
        self._recovery.complete()

    def steps(self, total: int) -> Iterator[Batch]:
        """Global batches from the committed step up to `total`, or until `finish`; then the state is saved.

        Raises Stopped, on all ranks after the same step, once SIGTERM or SIGINT reached any of them.
        A `break` leaves at once: its step does not count as done, and nothing is saved. What follows counts
        as part of a step, since other ranks may go on: declare what takes long with `pause`.
        """
        total = count_of_steps(total)
        progress, feed = self._progress, self._progress.need_feed()
        if progress.has_begun and progress.is_over:
            raise RecipeError(
                "run.steps was called after run.finish", fix="leave the first loop by its number of steps"
            )
        if self._checkpointer.run_dir and not self._checkpointer.parts.user_parts:
            self.say("nothing will be saved: call run.state(model=..., opt=..., data=...) before run.steps")
        logger = Logger(settings=self._settings, rank=self.rank, meter=self._meter(feed, total))
        self._boundary.begin(logger)
        self._strategy.start(self.step, total)
        progress.loops, progress.verb, started = progress.loops + 1, 0, self.step
        heartbeat.mine.wake()
        report_pipe.send({"step": self.step, "totalSteps": total, "epoch": feed.epoch})
        self._checkpointer.report_if_nothing_is_left(self.step, total)
        self._recovery.hold()
        try:
            while True:
                self._recovery.catch_up()
                if self.step >= total or progress.is_over:
                    break
                logger.begin(self.step + 1)
                self._seed_generators(verb=0)
                batch = feed.batch()
                yield batch
                feed.advance()
                progress.step += 1
                progress.verb = 0
                if not self._recovery.is_behind:
                    try:
                        self._boundary.after_step(epoch=batch.epoch, is_last=self.step == total)
                    except RuntimeError as error:
                        self._recovery.heal(error)
        finally:
            feed.close()
        if progress.is_over:
            self.say(f"finished at step {self.step} of {total}, as the program asked")
        self._recovery.retry(self._boundary.conclude, undo=None, stand_in=None)
        heartbeat.mine.rest()
        if self.step > started:
            self.say(logger.meter.summary(step=self.step, waited_s=feed.waited_s))

    def backward(self, loss_of: step_backward.LossOf, batch: Batch) -> torch.Tensor:
        """Gradients of the mean loss over the global batch, whatever this rank's share of it is.

        loss_of  micro-batch -> () tensor, the mean loss of its samples
        Returns () on the device, detached; give it to `log`, which averages it when a line is due.
        """

        def act() -> torch.Tensor:
            if self._progress.needs_warm_up:
                step_backward.warm_up(loss_of, batch, strategy=self._strategy)
                self._progress.needs_warm_up = False
            self._seed_generators(verb=self._progress.verb + 1)
            with self._boundary.counting_operations(batch.samples):
                return step_backward.backward(
                    loss_of, batch, strategy=self._strategy, precision=self._precision
                )

        before = step_backward.Rollback(self._strategy) if self._groups.can_heal else None
        loss = self._recovery.retry(act, undo=before.restore if before else None, stand_in=self._no_loss)
        self._finite.note(loss, self.step + 1)
        return loss

    def clip(self, max_norm: float) -> torch.Tensor:
        """Scale the gradients down where their norm, over all ranks and parameters, exceeds max_norm.

        Called after `backward`, when they are the mean over the global batch: clipping each rank's own part
        first would give another result for every number of ranks.
        Returns () the norm before, on the device: log it.
        """
        if not max_norm > 0:
            raise RecipeError(f"run.clip got {max_norm}, expected a number above 0", fix="leave run.clip out")
        return self._strategy.clip(max_norm)

    def log(self, *, now: bool = False, **values: torch.Tensor | float) -> None:
        """Note values of this step; about once a second (flag: log_every) rank 0 prints a line.

        Tensors of one element are averaged over the ranks, and only for a line cost a wait for the device.
        Numbers wait for the next line. now=True makes this step's line due; every rank says so alike.
        """
        if self._boundary.logger is None:
            raise RecipeError(
                "run.log was called outside `for batch in run.steps(...)`", fix="print it instead"
            )
        if not self._recovery.is_behind:
            self._boundary.logger.note(values, now=now)

    def finish(self) -> None:
        """End `steps` before its total is reached, with a save, as after its last step.

        One rank's word is enough. All leave after the same step: the next one, or 0.2 s later where steps are
        short. A run that is restarted afterwards trains on until the program calls this again.
        """
        if not self._progress.has_begun:
            raise RecipeError(
                "run.finish was called before `for batch in run.steps(...)`", fix="call it in the loop"
            )
        if not self._recovery.is_behind:
            self._boundary.finishes = True

    def evaluate(
        self,
        score: Callable[[Any], torch.Tensor],
        dataset: Any,
        *,
        batch: int = 256,
        collate: Collate = default_collate,
    ) -> float:
        """Mean of a score over a data set, each sample counted once: nothing is padded or repeated.

        score  micro-batch of k samples -> (k,) tensor, one value a sample
        batch  samples that a rank works on at once
        Returns the same number on every rank.
        """
        feed = self._feed_of(
            dataset,
            global_batch=batch * self._strategy.layout.data_size,
            splitter=self._splitter(),
            once=True,
            collate=collate,
        )

        def act() -> float:
            self._seed_generators(verb=self._progress.verb + 1)
            feed.position = 0
            return step_evaluate.evaluate(
                score,
                feed,
                strategy=self._strategy,
                precision=self._precision,
                group=self._groups.control,
            )

        return self._recovery.retry(act, undo=None, stand_in=math.nan)

    def keep_best(self, score: float) -> None:
        """Commit the state after this step, and keep it besides the newest, if its score is the highest yet.

        score  the same on every rank, say of `evaluate`; give its negative where less is better
        A checkpoint that could not be written does not count: the next best one takes its place.
        """
        self._recovery.retry(
            lambda: self._checkpointer.offer(float(score), group=self._groups.control),
            undo=None,
            stand_in=None,
        )

    @contextlib.contextmanager
    def pause(self, what: str) -> Iterator[None]:
        """Declare that this rank is busy with something other than steps, which may take any time.

        what  for the log, e.g. "uploading samples"
        Without it a rank that is silent for long is taken for hung, see docs/recovery.md. Verbs of Run do not
        need it.
        """
        self.say(f"pause at step {self.step}: {what}")
        with heartbeat.mine.paused():
            yield

    def say(self, message: str) -> None:
        """Print a line for people, once for all ranks."""
        if self.rank == 0:
            print(f"dtj: {message}", file=sys.stderr, flush=True)

    def _meter(self, feed: Feed, total: int) -> Meter:
        peak = self._settings.peak_tflops
        return Meter(
            total_steps=total,
            clock=time.monotonic,
            step=self.step,
            samples=feed.consumed,
            tokens=self._tokens,
            peak_flops=1e12 * peak if peak else None,
            memory=lambda: memory.most_bytes(self.device),
        )

    def _seed_generators(self, *, verb: int) -> None:
        stream = self._strategy.layout.stream
        random_state.begin(self._seed, step=self.step, verb=verb, stream=stream, device=self.device)

    def _splitter(self, **how: Any) -> Splitter:
        layout = self._strategy.layout
        return Splitter(rank=layout.data_rank, size=layout.data_size, **how)

    def _feed_of(self, dataset: Any, *, collate: Collate, **how: Any) -> Feed:
        loader = Loader(collate=collate, device=self.device, workers=self._settings.workers)
        return make_feed(dataset, loader=loader, **how)

    def _take_new_groups(self) -> None:
        self._strategy.rebuild()
        self._boundary.renew()
