"""Run: the verbs for those who own their loop. `loop.py` shows all of them in use.

    init -> parallel -> data -> state -> for batch in steps: backward, log

Every rank calls the same verbs in the same order. Nothing here waits for the accelerator but a logged step.
"""

import atexit
import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import default_collate

from dtj import random_state
from dtj.checkpoint import weights
from dtj.checkpoint.keeper import Keeper, Stateful
from dtj.choose import choose
from dtj.contract import EXIT_PEER_LOST, EXIT_SIGNAL, EXIT_STOPPED
from dtj.data import order
from dtj.data.feed import Batch, Collate, Cut, Feed, fetch, length_of
from dtj.errors import RecipeError, Stopped
from dtj.heal import NOWHERE, Place, Reunion
from dtj.parallel.layout import lay_out
from dtj.parallel.strategy import Strategy, blocks
from dtj.settings import Settings
from dtj.step import backward as step_backward
from dtj.step import memory
from dtj.step.precision import Precision
from dtj.stop import StopFlag
from dtj.team import Team
from dtj.watch import board, channel, pulse
from dtj.watch.diary import Diary
from dtj.watch.finite import FiniteWatch
from dtj.world import World, choose_device

Module = TypeVar("Module", bound=nn.Module)
T = TypeVar("T")


def init(
    *,
    seed: int = 0,
    device: str | None = None,
    micro_batch: int | None = None,
    save_every: int | None = None,
    log_every: int | None = None,
) -> "Run":
    """Join the job described by the environment, or be alone on a laptop.

    seed    of weights, data order and augmentation; the same on every rank
    device  "cpu", "cuda", ...; by default the accelerator that this machine has
    For the rest see `settings.Settings`; the job's flags win over what the code asks for here.
    """
    settings = Settings.read(os.environ, micro_batch=micro_batch, save_every=save_every, log_every=log_every)
    world = World.from_env(os.environ)
    layout = lay_out(settings.parallel, settings.mesh, world)
    chosen = choose_device(world, wish=device)
    precision = Precision(settings.precision, chosen)
    strategy = choose(settings, layout, chosen, half=precision.half)
    strategy.autocast = precision.autocast
    stop = StopFlag()
    team = Team(world, chosen, stop, in_place=strategy.heals)
    team.open()
    atexit.register(team.close)
    stop.install()
    random_state.seed(seed)
    if settings.tf32:
        torch.set_float32_matmul_precision("high")
    return Run(
        world=world,
        team=team,
        settings=settings,
        stop=stop,
        seed=seed,
        strategy=strategy,
        precision=precision,
    )


class Run:
    """One training run as seen from one rank."""

    def __init__(
        self,
        *,
        world: World,
        team: Team,
        settings: Settings,
        stop: StopFlag,
        seed: int,
        strategy: Strategy,
        precision: Precision,
    ) -> None:
        self.world = world
        self.device = strategy.device
        self.step = 0
        self._team = team
        self._reunion = Reunion()
        self._is_whole = False  # this rank's state is that of its place in the program
        self._verb = 0  # verbs done by all ranks together since the last step
        self._settings = settings
        self._stop = stop
        self._seed = seed
        self._strategy = strategy
        self._precision = precision
        self._models: list[nn.Module] = []
        self._feed: Feed | None = None
        self._diary: Diary | None = None
        self._pulse = pulse.Pulse(team.control)
        self._finite = FiniteWatch(self.device)
        self._pulsed = (0, 0.0)  # step and time of the last one
        self._next_pulse = 0
        self._unsettled = False
        self._save_due = False
        self._keeper = Keeper(
            settings=settings,
            world=world,
            strategy=strategy,
            group=team.control,
            clock=time.monotonic,
            say=self.say,
        )
        if precision.scales:
            self._keeper.extras["precision"] = precision

    @property
    def rank(self) -> int:
        """This process, from 0."""
        return self.world.rank

    @property
    def size(self) -> int:
        """Processes in all."""
        return self.world.size

    def parallel(self, model: Module) -> Module:
        """The model on this rank's device, spread over the ranks as the flags say (--parallel, --mesh)."""
        if self._settings.weights and not self._models:
            weights.assign(model, Path(self._settings.weights))
        layers = blocks(model)
        if self._settings.recompute:
            memory.recompute(layers or [model])
        if self._settings.compile:
            memory.compile_in_place(layers or [model])
        wrapped = self._strategy.wrap(model, is_healing=self._team.is_healing)
        self._models.append(wrapped)
        return wrapped  # type: ignore[return-value]  # called and trained like the model that went in

    def data(
        self, dataset: Any, *, global_batch: int, shuffle: bool = True, collate: Collate = default_collate
    ) -> Feed:
        """Feed `steps` from a map-style data set, every sample exactly once an epoch at any world size.

        global_batch  samples of one step over all ranks; the result does not depend on how many share it
        """
        if self._feed:
            raise RecipeError(
                "run.data was called twice", fix="join the data sets: torch.utils.data.ConcatDataset"
            )
        self._feed = Feed(
            dataset,
            global_batch=global_batch,
            world=replace(self.world, rank=self._data_rank, size=self._data_size),
            device=self.device,
            cut=Cut(
                micro_batch=self._settings.micro_batch,
                in_lockstep=self._strategy.in_lockstep,
                pipelined=self._strategy.pipelined,
            ),
            seed=self._seed,
            shuffle=shuffle,
            collate=collate,
        )
        return self._feed

    def state(self, **parts: Stateful) -> None:
        """Name what a checkpoint holds; if there is one, it is restored right here.

        Each part has state_dict and load_state_dict. The step comes without being named.
        """
        self._keeper.parts = {
            name: self._strategy.unwrap(part) if isinstance(part, nn.Module) else part
            for name, part in parts.items()
        }
        if self._strategy.extra:
            self._keeper.extras["sync"] = self._strategy.extra
        if not self._keeper.run_dir:
            self.say("no checkpoint folder is set: state is in memory only and lost when the job ends")
        if self._team.is_healing and self._compare():
            return  # the state itself comes where the others wait, see heal.py
        restored = self._keeper.restore()
        if restored is not None:
            self.step = restored
            self._unsettled = self._strategy.settles
        self._is_whole = True

    def steps(self, total: int) -> Iterator[Batch]:
        """Global batches from the committed step up to `total`.

        Raises Stopped, on all ranks after the same step, once SIGTERM or SIGINT reached any of them.
        """
        feed = self._need_feed()
        if self._keeper.run_dir and not self._keeper.parts:
            self.say("nothing will be saved: call run.state(model=..., opt=..., data=...) before run.steps")
        self._diary = Diary(
            settings=self._settings,
            rank=self.rank,
            clock=time.monotonic,
            first_step=self.step,
            total_steps=total,
            samples=feed.position,
        )
        self._pulsed = (self.step, time.monotonic())
        self._strategy.begin(self.step, total)
        channel.send({"step": self.step, "totalSteps": total, "epoch": feed.epoch})
        self._hold()
        while True:
            self._meet()
            if self.step >= total:
                break
            self._diary.begin(self.step + 1)
            random_state.begin_step(self._seed, self.step, self.rank, self.device)
            batch = feed.batch()
            yield batch
            feed.advance(batch)
            self.step += 1
            self._verb = 0
            if not self._is_behind:
                try:
                    self._end_step(self._diary, batch.epoch, is_last=self.step == total)
                except RuntimeError as error:
                    self._heal(error)
        self._together(self._conclude, undo=None, stand_in=None)

    def backward(self, loss_of: step_backward.LossOf, batch: Batch) -> torch.Tensor:
        """Gradients of the mean loss over the global batch, whatever this rank's share of it is.

        loss_of  micro-batch -> () tensor, the mean loss of its samples
        Returns () on the device, detached; give it to `log`, which averages it when a line is due.
        """

        def act() -> torch.Tensor:
            if self._unsettled:
                step_backward.settle(loss_of, batch, models=self._models, strategy=self._strategy)
                self._unsettled = False
            loss = step_backward.backward(
                loss_of, batch, models=self._models, strategy=self._strategy, precision=self._precision
            )
            if self._precision.scales:
                self._precision.unscale(self._parameters(), all_finite=self._all_finite)
            return loss

        before = step_backward.Before(self._models, self._strategy) if self._team.can_heal else None
        loss = self._together(
            act, undo=before.restore if before else None, stand_in=torch.zeros((), device=self.device)
        )
        self._finite.note(loss, self.step + 1)
        return loss

    def clip(self, max_norm: float) -> torch.Tensor:
        """Scale the gradients down where their norm, over all ranks and parameters, exceeds max_norm.

        Called after `backward`, when they are the mean over the global batch: clipping each rank's own part
        first would give another result for every number of ranks.
        Returns () the norm before, on the device: log it.
        """
        return self._strategy.clip(self._parameters(), max_norm)

    def log(self, *, now: bool = False, **values: torch.Tensor | float) -> None:
        """Note values of this step; about once a second (flag: log_every) rank 0 prints a line.

        Tensors of one element are averaged over the ranks, and only for a line cost a wait for the device.
        Numbers wait for the next line. now=True makes this step's line due; every rank says so alike.
        """
        if self._diary is None:
            raise RecipeError(
                "run.log was called outside `for batch in run.steps(...)`", fix="print it instead"
            )
        if not self._is_behind:
            self._diary.note(values, now=now)

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
        share = order.share(length_of(dataset), rank=self._data_rank, size=self._data_size)
        mine = torch.arange(len(dataset))[share]
        rounds = -(-len(dataset) // (self._data_size * batch))  # the same on all ranks: forward may need them

        def act() -> float:
            scores = torch.zeros((), dtype=torch.float64, device=self.device)
            with self._strategy.evaluating(self._models), torch.no_grad(), self._precision.autocast():
                for first in range(0, rounds * batch, batch):
                    board.mine.sign()
                    some = mine[first : first + batch]
                    indices = (
                        some if len(some) else torch.zeros(1, dtype=torch.int64)
                    )  # a stand-in, not counted
                    found = score(fetch(dataset, indices.numpy(), device=self.device, collate=collate))
                    if found.numel() != len(indices):
                        raise RecipeError(
                            f"the score of {len(indices)} samples has shape {tuple(found.shape)}",
                            fix="return one value a sample, e.g. model(mb.x).argmax(1) == mb.y",
                        )
                    if len(some):
                        scores += found.sum()
            total = torch.tensor([float(scores), len(mine)], dtype=torch.float64)
            if self._team.control is not None:  # ranks that split one model count the same samples: no harm
                dist.all_reduce(total, group=self._team.control)
            return float(total[0] / total[1])

        return self._together(act, undo=None, stand_in=math.nan)

    def keep_best(self, score: float) -> None:
        """Commit the state after this step, and keep it besides the newest, if no score was higher so far.

        score  the same on every rank, say of `evaluate`; give its negative where less is better
        """
        if not self._is_behind and self._keeper.offer(score):
            self._save_due = True

    @contextlib.contextmanager
    def pause(self, what: str) -> Iterator[None]:
        """Declare that this rank is busy with something other than steps, which may take any time.

        what  for the log, e.g. "uploading samples"
        Without it a rank that is silent for long is taken for hung, see docs/recovery.md. Verbs of Run do not
        need it.
        """
        self.say(f"pause at step {self.step}: {what}")
        with board.mine.paused():
            yield

    def say(self, message: str) -> None:
        """Print a line for people, once for all ranks."""
        if self.rank == 0:
            print(f"dtj: {message}", file=sys.stderr, flush=True)

    def _end_step(self, diary: Diary, epoch: int, *, is_last: bool) -> None:
        board.mine.stepped(self.step)
        self._strategy.after_step(self.step)
        agreed = pulse.Agreement()
        if self.step > self._pulsed[0] + self._strategy.slack:
            agreed = self._hear(diary)
        if agreed.broken:
            self._check_finite()
        self._save_due = self._save_due or agreed.save or self._keeper.is_due(self.step)
        if self._save_due and not agreed.stop and self._strategy.is_together(self.step):
            self._save_due = False
            self._check_finite()
            with board.mine.paused():
                self._keeper.save(self.step)
        if not self._pulse.is_under_way and (self.step >= self._next_pulse or diary.is_due or agreed.stop):
            self._send(diary, epoch)
        if is_last or agreed.stop:  # the last words are not left in the air
            self._hear(diary)
        if agreed.stop and not is_last:
            self._leave()
        if self._stop and self._leaves_alone and not is_last:
            self.say(f"stopped at step {self.step}; nothing was saved")
            raise Stopped(EXIT_SIGNAL + (self._stop.signal or 15))

    def _send(self, diary: Diary, epoch: int) -> None:
        now = time.monotonic()
        pause = pulse.pause(self.step - self._pulsed[0], now - self._pulsed[1])
        self._pulsed = (self.step, now)
        self._pulse.start(
            pulse.Wishes(
                stop=bool(self._stop) and not self._leaves_alone,
                save=self._keeper.wants_save(),
                log=diary.wants_line(),
                broken=self._finite.has_seen_one(),
                pause=pause if self.rank == 0 else 0,
                values=diary.end(self.step, samples=self._need_feed().position, epoch=epoch),
            )
        )

    def _hear(self, diary: Diary) -> pulse.Agreement:
        """What came of the pulse before; nothing new where none is under way."""
        agreed = self._pulse.read()
        if agreed is None:
            return pulse.Agreement()
        self._next_pulse = self._pulsed[0] + agreed.pause
        diary.hear(agreed.values, log=agreed.log)
        return agreed

    @property
    def _leaves_alone(self) -> bool:
        """Nothing would be saved, so a stop of all would only lose what the others can keep in memory."""
        return self._team.can_heal and not self._keeper.run_dir

    def _leave(self) -> None:
        """All ranks are here, after the same step."""
        folder = self._conclude()
        if self._team.control is not None:  # no rank may claim a checkpoint that rank 0 has not committed
            dist.barrier(group=self._team.control)
        if folder is None:
            self.say(f"stopped at step {self.step}; nothing was saved")
            raise Stopped(EXIT_SIGNAL + (self._stop.signal or 15))
        self.say(f"stopped at step {self.step}; checkpoint {folder}")
        raise Stopped(EXIT_STOPPED)

    def _conclude(self) -> Path | None:
        """Save the state that the run ends with; ranks that trained alone meet, nothing broken is saved."""
        self._strategy.after_step(self.step, force=True)
        self._check_finite()
        with board.mine.paused():
            return self._keeper.save(self.step, last=True)

    def _check_finite(self) -> None:
        self._finite.check(self._team.control, size=self.size, saved=self._keeper.saved_step)

    @property
    def _data_rank(self) -> int:
        return self._strategy.layout.data_rank

    @property
    def _data_size(self) -> int:
        return self._strategy.layout.data_size

    def _parameters(self) -> list[nn.Parameter]:
        return [p for model in self._models for p in model.parameters()]

    def _all_finite(self, mine: torch.Tensor) -> bool:
        if self.size == 1:
            return bool(mine)
        worst = mine.to(torch.uint8)
        dist.all_reduce(worst, op=dist.ReduceOp.MIN)
        return bool(worst)

    def _need_feed(self) -> Feed:
        if self._feed is None:
            raise RecipeError("run.steps has no data", fix="call run.data(dataset, global_batch=...) first")
        return self._feed

    # Healing in place, see heal.py.

    @property
    def _place(self) -> Place:
        return Place(self.step, self._verb, self._feed.position if self._feed else 0)

    @property
    def _is_behind(self) -> bool:
        """The others wait further on; until there, everything is done without the model and without them."""
        return self._reunion.is_behind(self._place)

    def _together(self, act: Callable[[], T], *, undo: Callable[[], None] | None, stand_in: T) -> T:
        """A verb that takes all ranks: repeated where one is lost, left out where the others have done it."""
        while True:
            self._meet()
            if self._is_behind:
                result = stand_in
                break
            try:
                result = act()
                break
            except RuntimeError as error:
                if undo and self._team.can_heal:
                    undo()
                self._heal(error)
        self._verb += 1
        return result

    def _meet(self) -> None:
        """Where the others wait: take over the state; where others are behind: hand it over."""
        while self._reunion.target is not None and not self._is_behind:
            try:
                group = self._need_control()
                taken = self._reunion.meet(group, pack=lambda: self._keeper.pack(self.step))
                if taken is not None:
                    self._keeper.unpack(taken)
                    self._is_whole = True
                    self._hold()
            except RuntimeError as error:
                self._heal(error)

    def _heal(self, error: RuntimeError) -> None:
        """Join the next generation and find out who is where; raise the error where it is no lost peer's."""
        while True:
            self._team.reform(error)
            try:
                self._strategy.relay(self._models)
                self._pulse = pulse.Pulse(self._team.control)
                self._unsettled = self.step > 0
                if self._diary:
                    self._diary.forget()
                self._compare()
            except RuntimeError as another:
                error = another
            else:
                return

    def _compare(self) -> bool:
        """Say where this rank is; False where no rank is anywhere, so that the run has to begin."""
        place = self._place if self._is_whole else NOWHERE
        target = self._reunion.compare(place, self._need_control())
        if target is None:
            if self._diary:  # it had begun: whoever knew how far it was is gone
                raise SystemExit(EXIT_PEER_LOST)
            return False
        if not self._is_whole:
            self.step, self._verb = target.step, 0
            self._need_feed().position = target.position
            self._unsettled = self.step > 0
        elif self._is_behind:
            self._is_whole = False
            channel.send({"hold": False})
        return True

    def _hold(self) -> None:
        """Tell the agent that this rank need not be restarted when another one is."""
        if self._is_whole and self._team.can_heal and self._keeper.parts and self.size > 1:
            channel.send({"hold": True}, wait_s=1.0)

    def _need_control(self) -> "dist.ProcessGroup":
        assert self._team.control is not None  # a world of one process has nobody to lose
        return self._team.control
