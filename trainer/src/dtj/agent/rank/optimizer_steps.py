"""Counts the steps of a program that does not use dtj: those of one of its optimizers."""

import os
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from dtj import contract
from dtj.telemetry import heartbeat
from dtj.telemetry.busy_time import BusyTime

# torch.distributed.checkpoint makes a step of a new optimizer before it loads the optimizer's state.
_MADE_BEFORE_LOAD = 1
# So many steps of other optimizers, and none of the one that is counted: that one is no longer used.
_MOST_OF_OTHERS = 100
# By this step of the process, ranks that train one model have sent each other gradients.
_TELLING = 20


def count() -> None:
    """Count from now on; called in a rank, before its program."""
    from torch.optim.optimizer import (  # noqa: PLC0415 - loaded by the agent before the fork
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    steps = OptimizerSteps()
    register_optimizer_step_pre_hook(steps.before)
    register_optimizer_step_post_hook(steps.after)


class OptimizerSteps:
    """Counts the steps of the first optimizer; if it is gone or no longer used, those of another one.

    A program may train one model after the other, each with an optimizer of its own. A step of any of them
    is a sign of life.
    """

    def __init__(self) -> None:
        # Weak: the program may want the memory of its model.
        self._counted: Callable[[], object] = lambda: None
        self._done = 0
        self._of_others = 0  # since the last counted step
        self._taken = 0  # by this process
        self._busy_time = BusyTime(heartbeat.mine)

    def before(self, optimizer: Any, *_: object) -> None:
        """Called before each step of any optimizer."""
        if self._counted() is None or self._of_others >= _MOST_OF_OTHERS:
            self._counted, self._of_others = weakref.ref(optimizer), 0
            self._busy_time.watch(optimizer)
        if self._counted() is optimizer:
            self._busy_time.before_step()

    def after(self, optimizer: Any, *_: object) -> None:
        """Called after each step of any optimizer."""
        if self._counted() is optimizer:
            self._done += 1
            if self._done <= 1 + _MADE_BEFORE_LOAD:
                self._done = max(self._done, _steps_made(optimizer))
            self._of_others = 0
            self._busy_time.after_step()
            self._taken += 1
            if self._taken == _TELLING:
                _warn_of_lone_ranks(os.environ)
        else:
            self._of_others += 1
        if self._done:
            heartbeat.mine.optimized(self._done)


def _warn_of_lone_ranks(env: Mapping[str, str]) -> None:
    """Say once for all ranks that each trains a model of its own: libraries fall back to that in silence."""
    from torch import distributed  # noqa: PLC0415 - as above

    ranks = env.get(contract.WORLD_SIZE, "1")
    if ranks == "1" or env.get(contract.RANK) != "0" or distributed.is_initialized():
        return
    print(
        f"dtj: {_TELLING} optimizer steps and no process group: each of the {ranks} ranks trains for itself\n"
        "  fix: if they should train one model, call torch.distributed.init_process_group, or tell the "
        "library to: devices and num_nodes of Lightning, ACCELERATE_USE_CPU=true of Accelerate on CPUs",
        file=sys.stderr,
    )


def _steps_made(optimizer: Any) -> int:
    """Steps that the optimizer has made; includes those before a restart. 1 if it does not count them.

    Otherwise a script that resumes from its own checkpoint would seem to make no progress.
    """
    kept: list[Any] = [state.get("step") for state in optimizer.state.values() if isinstance(state, dict)]
    counts = [step for step in kept if isinstance(step, int) or getattr(step, "ndim", None) == 0]
    return max(map(int, counts), default=1)
