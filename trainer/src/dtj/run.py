"""Run: the verbs for a training loop of your own. `loop.py` shows most of them in use.

    init -> parallel -> data -> state -> for batch in steps: backward, log

Every rank calls the same verbs in the same order. In training, only a logged step waits for the accelerator.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, overload

import torch
from torch import nn
from torch.utils.data import default_collate

from dtj.checkpoint import weights
from dtj.checkpoint.checkpointer import Checkpointer
from dtj.checkpoint.parts import Stateful
from dtj.copies import memory_copies
from dtj.data.feed import Batch, Feed
from dtj.data.feed_maker import FeedMaker, check_equal_shares
from dtj.data.loader import Collate
from dtj.data.source import Source
from dtj.data.splitter import Splitter
from dtj.errors import RecipeError
from dtj.healing.recovery import Recovery
from dtj.parallel.parallelize import parallelize
from dtj.parallel.strategy import Strategy, unwrap
from dtj.ranks import exchange, random_state, stop
from dtj.ranks.process_groups import ProcessGroups
from dtj.ranks.world import check_default_device
from dtj.settings import Settings
from dtj.step import backward as step_backward
from dtj.step import evaluate as step_evaluate
from dtj.step.boundary import Boundary
from dtj.step.finite import FiniteCheck
from dtj.step.precision import Precision
from dtj.step.progress import Progress, whole_steps
from dtj.step.replicas import ReplicaCheck
from dtj.telemetry import device_meter, heartbeat, report_pipe
from dtj.telemetry.logger import Logger
from dtj.telemetry.say import say
from dtj.telemetry.sinks import OnLine

Module = TypeVar("Module", bound=nn.Module)


class DdpOptions(TypedDict, total=False):
    """See Run.parallel."""

    find_unused_parameters: bool
    forward_sync_buffers: bool
    static_graph: bool


class Run:
    """One training run as seen from one rank.

    device   of this rank: samples are moved there, and losses are there
    devices  all devices of this rank, `device` first; more than one with --devices
    """

    def __init__(
        self,
        *,
        groups: ProcessGroups,
        settings: Settings,
        seed: int,
        strategy: Strategy,
        precision: Precision,
    ) -> None:
        self.world, self.devices, self.device = groups.world, groups.devices, groups.devices[0]
        self._groups = groups
        self._settings = settings
        self._seed = seed
        self._strategy = strategy
        self._precision = precision
        self._no_loss = torch.zeros((), device=self.device)
        self._finite = FiniteCheck(self.device)
        self._progress = Progress(feed=Feed(Source(), device=self.device))
        layout = strategy.layout
        self._feeds = FeedMaker(
            settings=settings,
            splitter=Splitter(
                rank=layout.data_rank,
                size=layout.data_size,
                micro_batch=settings.micro_batch,
                in_lockstep=strategy.in_lockstep,
                pipeline_micro_batches=strategy.pipeline_micro_batches,
            ),
            device=self.device,
            seed=seed,
            parallel=layout.strategy,
        )
        self._checkpointer = Checkpointer(
            settings=settings,
            world=self.world,
            strategy=strategy,
            clock=time.monotonic,
            say=self.say,
        )
        if precision.scales:
            self._checkpointer.parts.internal_parts["precision"] = precision
        self._copies = memory_copies.of_rank(
            os.environ, self._checkpointer, is_needless=lambda: groups.can_heal
        )
        self._boundary = Boundary(
            groups=groups,
            strategy=strategy,
            copies=self._copies,
            finite=self._finite,
            replicas=ReplicaCheck(settings.check_every, optimizers=strategy.same_optimizer_state),
            progress=self._progress,
            say=self.say,
        )
        self._callbacks: list[OnLine] = []
        self._batch: Batch | None = None
        self._said: set[str] = set()
        self._moving = step_backward.Moving()
        self._plain = step_backward.PlainForm(
            strategy,
            precision,
            begins=self._begin_plain_form,
            counting=self._boundary.counting_operations,
        )
        self._recovery = Recovery(
            groups=groups,
            checkpointer=self._checkpointer,
            progress=self._progress,
            on_new_groups=self._take_new_groups,
            save_alone=self._boundary.conclude,
        )

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""
        return self.world.rank

    @property
    def size(self) -> int:
        """World size: the number of ranks."""
        return self.world.size

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return self._progress.step

    @overload
    def parallel(self, model: Module, **how: Unpack[DdpOptions]) -> Module: ...
    @overload
    def parallel(self, model: Callable[[], Module], **how: Unpack[DdpOptions]) -> Module: ...

    def parallel(
        self,
        model: Module | Callable[[], Module],
        *,
        find_unused_parameters: bool = False,
        forward_sync_buffers: bool = True,
        static_graph: bool = False,
    ) -> Module:
        """Move the model to this rank's device and wrap it for the strategy of --parallel and --mesh.

        model                   a model on the CPU, or a function that builds it. With --weights and a
                                strategy that shards (fsdp, hsdp, tp, tp+fsdp) it is then built without
                                memory for parameters, and a rank reads its shards only
        find_unused_parameters  a step may leave parameters out, such as a branch or a pooler
        forward_sync_buffers    every rank gets rank 0's buffers in each step
        static_graph            every step runs the same graph
        These three are for ddp and zero1, see torch's DistributedDataParallel; other strategies ignore them.
        A model whose parts are already on several devices (see `devices`) is not moved.
        Returns the wrapped model; call it and pass its parameters to the optimizer as usual.
        """
        file = self._settings.weights if not self._strategy.models else None
        return parallelize(  # type: ignore[return-value]  # it has the interface of the model that was passed
            model,
            self._strategy,
            self._settings,
            load=partial(weights.load, path=Path(file)) if file else None,
            is_healing=self._groups.is_healing,
            find_unused_parameters=find_unused_parameters,
            forward_sync_buffers=forward_sync_buffers,
            static_graph=static_graph,
        )

    def data(
        self,
        dataset: Any,
        *,
        global_batch: int,
        shuffle: bool = True,
        collate: Collate = default_collate,
        tokens: int | None = None,
        drop_last: bool = False,
        equal_shares: bool = False,
    ) -> Feed:
        """Set the data set of `steps`: every sample is used exactly once per epoch, at any world size.

        dataset       map-style (`__len__` and `__getitem__`), or a stream (`__iter__`), see data/stream.py
        global_batch  samples per step over all ranks; the result does not depend on the number of ranks
        shuffle       in a new order each epoch; a stream keeps its own order
        collate       list of samples -> micro-batch for the loss; default: tensors stacked along dimension 0
        tokens        tokens per sample, if samples are text: the log then shows tokens per second
        drop_last     leave out the last batch of an epoch if it is smaller
        equal_shares  every rank gets equally many samples, for layers and losses that gather them over the
                      ranks (SyncBatchNorm, contrastive losses); implies drop_last. RecipeError if
                      global_batch is not a multiple of the number of ranks
        """
        feed = self._feeds.of_dataset(
            dataset,
            global_batch=global_batch,
            shuffle=shuffle,
            collate=collate,
            tokens=tokens,
            drop_last=drop_last,
            equal_shares=equal_shares,
        )
        return self._use(feed)

    def loader(self, loader: Any, *, accumulate: int = 1, tokens: int | None = None) -> Feed:
        """Set a loader of your own as the data of `steps`, instead of `data`.

        loader      a torch DataLoader, or anything else that yields batches each time that it is iterated.
                    Its batch size is that of one rank. The samples of a plain DataLoader over a map-style
                    dataset are divided among the ranks; any other loader must do that itself
        accumulate  batches that each rank takes in a step, one forward pass each
        tokens      tokens per sample, if samples are text: the log then shows tokens per second
        The gradients are the mean over the ranks of their batches' means; `count` of `backward` weights
        batches of different sizes. What a checkpoint remembers: docs/techniques/data.md.
        """
        return self._use(self._feeds.of_loader(loader, accumulate=accumulate, tokens=tokens))

    def state(self, **parts: Stateful) -> None:
        """Name the parts that a checkpoint holds; if there is a checkpoint, it is restored here.

        Each part has state_dict and load_state_dict. The step is saved as well, without a name.
        """
        if self._checkpointer.parts.user_parts:
            raise RecipeError("run.state was called twice", fix="name all parts in one call")
        for part in parts.values():
            if isinstance(part, torch.optim.Optimizer):
                self._strategy.order_parameters(part)
                self._precision.watch(part)
        self._checkpointer.parts.register(
            {name: unwrap(part) if isinstance(part, nn.Module) else part for name, part in parts.items()}
        )
        for name, part in parts.items():
            if isinstance(part, torch.optim.Optimizer) and (
                warning := self._strategy.check_optimizer(name, part)
            ):
                self.say(warning)
        if any(isinstance(part, torch.optim.LBFGS) for part in parts.values()):
            # How often it calls its closure, and so the verbs in it, depends on losses that a newcomer lacks.
            self._recovery.give_up_healing()
        if self._strategy.extra:
            # By its class: the state of another --sync in the checkpoint is then left out.
            name = f"sync {type(self._strategy.extra).__name__}"
            self._checkpointer.parts.internal_parts[name] = self._strategy.extra
        if not self._checkpointer.run_dir:
            self.say("no checkpoint folder is set: state is in memory only and lost when the job ends")
        if self._recovery.joins_survivors():
            self._checkpointer.claim()
            return
        restored = self._copies.restore(self._groups.control)
        if restored is None:
            restored = self._checkpointer.restore(self._groups.control)
        if restored is not None:
            self._progress.step = restored
            self._progress.needs_warm_up = self._strategy.needs_warm_up
        self._recovery.mark_restored()

    def steps(self, total: int) -> Iterator[Batch]:
        """Yield global batches from the restored step to `total`, or until `finish`; then save the state.

        total  number of steps of the whole training, including those before a restart
        Without `data` or `loader`, batches are empty, e.g. for reinforcement learning.
        After SIGTERM or SIGINT on any rank, Stopped is raised on all ranks after the same step. A program
        that catches it may clean up; it counts as stopped even if it then ends with code 0.
        A `break` ends the loop immediately: the current step does not count as done, and nothing is saved.
        Code after it counts as part of a step, since other ranks may continue: use `pause` if it takes long.
        """
        total = self._progress.feed.checked_total(whole_steps(total), self.step)
        logger = self._begin_loop(total)
        progress, feed, started = self._progress, self._progress.feed, self.step
        with self._groups.stop.installed():
            try:
                while self._has_next_step(total):
                    logger.begin(self.step + 1)
                    self._seed_generators(verb=0)
                    batch = self._batch = feed.batch(over=self._plain.over)
                    yield batch
                    if self.size > 1:  # also if the program left its loop over the micro-batches early
                        self._plain.check_complete()
                    progress.advance()
                    is_last = self.step == total
                    if not is_last:
                        feed.look_ahead()  # while the device computes this step
                    self._recovery.between_steps(self._boundary.after_step, batch.epoch, is_last)
            finally:
                feed.close()
            if progress.is_over:
                self.say(f"finished at step {self.step} of {total}: the program called run.finish")
            self._recovery.run_verb(partial(self._boundary.conclude, may_wait=True))
            stop.left = None
            heartbeat.mine.rest()
            if self.step > started:
                self.say(logger.meter.summary(step=self.step, waited_s=feed.waited_s))

    def _begin_loop(self, total: int) -> Logger:
        progress, feed = self._progress, self._progress.feed
        check_equal_shares(self._strategy.models, feed, ranks=self.size)
        self._strategy.check_unchanged()
        if progress.has_begun and progress.is_over:
            raise RecipeError(
                "run.steps was called after run.finish",
                fix="end the first loop by its number of steps, not by run.finish",
            )
        if self._checkpointer.run_dir and not self._checkpointer.parts.user_parts:
            self.say("nothing will be saved: call run.state(model=..., opt=..., data=...) before run.steps")
        if self.size > 1:
            check_default_device()
            self._recovery.run_verb(lambda: self._check_alike(total))
        logger = self._logger(total)
        self._boundary.begin(logger)
        self._strategy.start(self.step, total)
        progress.loops, progress.verb = progress.loops + 1, 0
        heartbeat.mine.wake()
        heartbeat.mine.reports_steps()
        report_pipe.send({"step": self.step, "totalSteps": total, "epoch": feed.epoch})
        self._checkpointer.report_if_nothing_is_left(self.step, total)
        self._recovery.report_state()
        return logger

    def _has_next_step(self, total: int) -> bool:
        self._recovery.hand_over()
        return self.step < total and not self._progress.is_over

    def _logger(self, total: int) -> Logger:
        feed, settings = self._progress.feed, self._settings
        meter = device_meter.of_device(
            self.device,
            total_steps=total,
            step=self.step,
            samples=feed.consumed,
            tokens=feed.tokens,
            peak_flops=1e12 * settings.peak_tflops if settings.peak_tflops else None,
        )
        return Logger(settings=settings, rank=self.rank, meter=meter, callbacks=self._callbacks)

    @overload
    def backward(self, loss: step_backward.LossOf, batch: Batch) -> torch.Tensor: ...
    @overload
    def backward(self, loss: torch.Tensor, *, count: step_backward.Count | None = None) -> torch.Tensor: ...

    def backward(
        self,
        loss: step_backward.LossOf | torch.Tensor,
        batch: Batch | None = None,
        *,
        count: step_backward.Count | None = None,
    ) -> torch.Tensor:
        """Compute the gradients of the mean loss over the global batch, in one of two forms.

            loss = run.backward(lambda mb: loss_of(model, mb), batch)      # a function, and the batch

            for mb in batch:                                                # a loss for each micro-batch
                loss = run.backward(loss_of(model, mb))

        loss   () tensor, the mean loss of the samples of a micro-batch, or a function that returns it
        count  what the loss is a mean over, if not samples, e.g. the tokens that are not padding: then the
               gradients are those of the mean over the tokens of the global batch. A function returns
               (loss, count) instead. It may be 0, where a mean of your own must not divide by 0
        Gradients are averaged over the ranks, unless --sync chooses local or stale steps. In the loop,
        forward runs in the type of --precision, and the last micro-batch of a step averages. Only the form
        with a function works with --parallel pp, and only then other ranks keep their state if one is lost.
        Without data, a step is one call with a loss.
        Returns this rank's loss, a detached () tensor on the device, in a loop the sum so far; `log` averages
        it over the ranks.
        """
        if not callable(loss):
            total = self._plain.backward(loss, count, self._batch)
            self._finite.note(total, self.step + 1)
            return total
        if batch is None or not batch.micro_batches:
            raise RecipeError(
                "run.backward got a function, but no batch with samples",
                fix="call run.data or run.loader before run.steps, and pass the batch: "
                "run.backward(loss, batch)",
            )
        return self._backward(loss, batch)

    def _backward(self, loss_of: step_backward.LossOf, batch: Batch) -> torch.Tensor:
        how: dict[str, Any] = {"strategy": self._strategy, "precision": self._precision}
        before: step_backward.Rollback | None = None

        def verb() -> torch.Tensor:
            nonlocal before
            watched: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if self._groups.can_heal:
                before = step_backward.Rollback(self._strategy, self._moving.known)
                watched = self._moving.watched(self._strategy)
            if self._progress.needs_warm_up:
                step_backward.warm_up(loss_of, batch, moving=self._moving.known, **how)
                self._progress.needs_warm_up = False
            self._seed_verb(self._progress.verb + 1)
            with watched, self._boundary.counting_operations(batch.samples):
                return step_backward.backward(loss_of, batch, **how)

        def rollback() -> None:
            if before:
                before.restore()

        loss = self._recovery.run_verb(verb, skip=self._skip_backward, rollback=rollback)
        self._finite.note(loss, self.step + 1)
        return loss

    def _skip_backward(self) -> torch.Tensor:
        """The program may use the gradients before this rank takes over those of the others."""
        for parameter in self._strategy.parameters:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return self._no_loss

    def _begin_plain_form(self) -> None:
        """A pass over a batch in the user's own code, which cannot be repeated after the loss of a rank."""
        self._recovery.give_up_healing()
        self._progress.verb += 1
        self._seed_verb(self._progress.verb)

    def clip(self, max_norm: float, parameters: Iterable[nn.Parameter] | None = None) -> torch.Tensor:
        """Scale the gradients down if their norm over all parameters exceeds max_norm.

        parameters  those to clip; default: of all models. With several models pass one model's: an earlier
                    loss may have left gradients in the others
        Call it after `backward`, when the gradients are the mean over the global batch: clipping each rank's
        own gradients before would make the result depend on the number of ranks.
        Returns the norm before clipping, a () tensor on the device.
        """
        if not max_norm > 0:
            raise RecipeError(
                f"run.clip got {max_norm}, expected a number above 0",
                fix="for no clipping, do not call run.clip",
            )
        chosen = self._strategy.parameters if parameters is None else list(parameters)
        return self._strategy.clip(max_norm, chosen)

    def log(self, *, now: bool = False, **values: torch.Tensor | float) -> None:
        """Log values of this step; rank 0 prints a line about once a second (flag: --log-every).

        values  numbers, or tensors of one element; of equal names, the mean over the ranks that log them
        now     print a line for this step, also if only this rank asks for it; up to half a second later
        Tensors of a step that is not printed are dropped, without a wait for the device. Numbers are kept for
        the next line.
        """
        if self._boundary.logger is None:
            raise RecipeError(
                "run.log was called outside `for batch in run.steps(...)`", fix="print the value instead"
            )
        if not self._recovery.is_behind:
            self._boundary.logger.note(values, now=now)

    def on_line(self, callback: OnLine) -> None:
        """Call `callback(step, values)` on rank 0 for each line of the log, e.g. to send it to a service.

        values  float by name: the loss and what else `log` got for this step, the epoch's rates; NaN and
                infinities are left out
        Call it before `steps`. dtj.sinks has callbacks for TensorBoard, Weights & Biases and MLflow. An error
        of the callback ends the run.
        """
        self._callbacks.append(callback)

    def finish(self) -> None:
        """End `steps` before its total is reached, and save the state, as after the last step.

        It is enough that one rank calls it. All ranks leave the loop after the same step: the next one, or
        about 0.2 s later if steps are short. If the run is restarted afterwards, it continues training until
        the program calls `finish` again.
        """
        if not self._progress.has_begun:
            raise RecipeError(
                "run.finish was called before `for batch in run.steps(...)`", fix="call it in the loop"
            )
        if not self._recovery.is_behind:
            self._boundary.wants_finish = True

    @overload
    def evaluate(
        self,
        score: Callable[[Any], torch.Tensor],
        dataset: Any,
        *,
        batch: int | None = None,
        collate: Collate = default_collate,
    ) -> float: ...
    @overload
    def evaluate(
        self,
        score: Callable[[Any], Any],
        dataset: Any,
        *,
        metric: step_evaluate.Metric,
        batch: int | None = None,
        collate: Collate = default_collate,
    ) -> Any: ...

    def evaluate(
        self,
        score: Callable[[Any], Any],
        dataset: Any,
        *,
        metric: step_evaluate.Metric | None = None,
        batch: int | None = None,
        collate: Collate = default_collate,
    ) -> Any:
        """Mean of a score over a data set, or a metric of it. Each sample counts once, nothing is padded.

        score    micro-batch of k samples -> (k,) tensor, one value per sample. With a metric: what its
                 `update` gets, a tuple such as (scores, labels), a dict of keywords, or one value
        metric   of torchmetrics, alone or a MetricCollection: F1, AUROC, perplexity, ...
        batch    samples per forward pass of a rank; default: as many as in training, because that fits into
                 memory: --micro-batch, else the rank's part of the global batch; without run.data 256
        collate  as for `data`
        Returns the same on every rank: a number; with a metric what its `compute` returns, with floats for
        tensors of one element.
        """
        feed = self._feeds.of_evaluation(dataset, batch=batch, collate=collate, training=self._progress.feed)

        def verb() -> Any:
            self._seed_generators(verb=self._progress.verb + 1)
            feed.position = 0
            return step_evaluate.evaluate(
                score,
                feed,
                metric,
                strategy=self._strategy,
                precision=self._precision,
                group=self._groups.control,
                warn=self._say_once,
            )

        skip = partial(step_evaluate.of_no_sample, metric)
        return self._recovery.run_verb(verb, skip=skip, is_evaluation=True)

    def reduce(self, value: torch.Tensor | float, how: str = "mean") -> torch.Tensor:
        """The mean, sum, max or min of a tensor over all ranks, on every rank; without a graph.

        how  "mean", "sum", "max" or "min"; RecipeError for another word
        Every rank calls it with a tensor of the same shape. A sum of booleans counts them.
        """
        mine = exchange.reducible(value, how, self.device)
        return self._recovery.run_verb(lambda: exchange.reduce(mine, how), skip=lambda: mine)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Context for forward passes outside `backward` and `evaluate`, in the type of --precision."""
        return self._precision.autocast()

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model that was passed to `parallel`, e.g. to call a method of it that is not forward."""
        return unwrap(model)

    def keep_best(self, score: float) -> None:
        """Save a checkpoint of this step if its score is the highest yet; it is kept besides the newest ones.

        score  the same on every rank, e.g. from `evaluate`; pass its negative if lower is better
        If a checkpoint cannot be written, its score does not count: a lower score is then kept as the best.
        With --sync local, postlocal and diloco the ranks synchronize first: the score is that of their own
        weights, the checkpoint holds what they become at the sync point.
        """
        self._recovery.run_verb(lambda: self._checkpointer.offer(float(score), group=self._groups.control))

    @contextlib.contextmanager
    def pause(self, what: str, *, at_most_s: float = heartbeat.PAUSE_S) -> Iterator[None]:
        """Context for work that is not part of a step and may take long; suspends hang detection.

        what       for the log, e.g. "uploading samples"
        at_most_s  seconds that it may take, an hour by default; a rank that takes longer and does nothing is
                   treated as hung
        Without it, a rank that does nothing for long is treated as hung, see docs/recovery.md. The verbs of
        Run do not need it. RecipeError if at_most_s is not a positive number.
        """
        if not 0 < at_most_s < math.inf:
            raise RecipeError(
                f"run.pause got at_most_s={at_most_s}, expected a positive number of seconds",
                fix="use a generous upper limit, for example 7200",
            )
        self.say(f"pause at step {self.step}: {what}")
        with heartbeat.mine.paused(at_most_s):
            yield

    def say(self, message: str) -> None:
        """Print a line on stderr, on rank 0 only."""
        if self.rank == 0:
            say(message)

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self.say(message)

    def _check_alike(self, total: int) -> None:
        """RecipeError on all ranks if one of them would train otherwise than the others."""
        group, feed = self._groups.control, self._progress.feed
        mine = {"the total of run.steps": total, "the seed": self._seed % 2**63}
        exchange.check_equal(mine | feed.same_on_all_ranks("run.data"), group=group)
        if not self._progress.has_begun and self.step < total:
            found = feed.check_alike(partial(exchange.all_gather_number, group=group))
            if found:
                self.say(found)

    def _use(self, feed: Feed) -> Feed:
        if self._progress.feed.global_batch is not None:
            raise RecipeError(
                "the data was set twice: by run.data or run.loader",
                fix="combine the data sets with torch.utils.data.ConcatDataset",
            )
        self._progress.feed = feed
        return feed

    def _seed_generators(self, *, verb: int) -> None:
        stream = self._strategy.layout.stream
        random_state.begin(self._seed, step=self.step, verb=verb, stream=stream, devices=self.devices)

    def _seed_verb(self, number: int) -> None:
        """Before a backward pass: other ranks may repeat or skip it, or must draw the same in it."""
        if self.size > 1:
            self._seed_generators(verb=number)

    def _take_new_groups(self) -> None:
        self._strategy.rebuild()
        self._boundary.renew()
