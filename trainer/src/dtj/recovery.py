"""Verbs that take all ranks, and outlive the loss of one: repeated, left out, or made up for.

Before it stands `run.py`, which says what a verb does and how it is undone; after it `process_groups.py`,
which joins the next process groups, and `heal.py`, which finds out who is behind and hands over the state.
"""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from dtj.checkpoint.checkpointer import Checkpointer
from dtj.contract import EXIT_PEER_LOST
from dtj.errors import Stopped
from dtj.heal import NOWHERE, Handover, Place
from dtj.process_groups import ProcessGroups
from dtj.progress import Progress
from dtj.telemetry import report_pipe

T = TypeVar("T")


class Recovery:
    """This rank among others that may be lost.

    on_new_groups  called after a change of process groups, before anything is exchanged over them
    """

    def __init__(
        self,
        *,
        groups: ProcessGroups,
        checkpointer: Checkpointer,
        progress: Progress,
        on_new_groups: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._groups = groups
        self._checkpointer = checkpointer
        self._progress = progress
        self._on_new_groups = on_new_groups
        self._say = say
        self._handover = Handover()
        self._is_whole = False  # this rank's state is that of its place in the program

    @property
    def is_behind(self) -> bool:
        """The others wait further on; until there, everything is done without the model and without them."""
        return self._handover.target is not None and self._handover.is_behind(self._place)

    def retry(self, act: Callable[[], T], *, undo: Callable[[], None] | None, stand_in: T) -> T:
        """A verb that takes all ranks: repeated where one is lost, left out where the others have done it."""
        while True:
            self.catch_up()
            if self.is_behind:
                result = stand_in
                break
            try:
                result = act()
                break
            except RuntimeError as error:
                if undo and self._groups.can_heal:
                    undo()
                self.heal(error)
        self._progress.verb += 1
        return result

    def joins(self) -> bool:
        """The others hold the run in memory, and the state comes where they wait."""
        return self._groups.is_healing and self._compare()

    def complete(self) -> None:
        """This rank has restored what there was: it is where it says."""
        self._is_whole = True

    def hold(self) -> None:
        """Tell the agent that this rank need not be restarted when another one is."""
        if (
            self._is_whole
            and self._groups.can_heal
            and self._checkpointer.parts.user_parts
            and self._groups.control is not None
        ):
            report_pipe.send({"hold": True}, wait_s=1.0)

    def catch_up(self) -> None:
        """Where the others wait: take over the state; where others are behind: hand it over."""
        while self._handover.target is not None and not self.is_behind:
            try:
                taken = self._handover.exchange(
                    self._control, pack=lambda: self._checkpointer.pack(self._progress.step)
                )
                if taken is not None:
                    self._checkpointer.unpack(taken)
                    self._is_whole = True
                    self.hold()
            except RuntimeError as error:
                self.heal(error)

    def heal(self, error: RuntimeError) -> None:
        """Join the next generation and find out who is where; raise the error where it is no lost peer's."""
        while True:
            try:
                self._groups.reform(error)
            except Stopped:
                saved = self._checkpointer.saved_step
                rest = "nothing was saved" if saved is None else f"the newest checkpoint is of step {saved}"
                self._say(f"stopped at step {self._progress.step}; {rest}")
                raise
            try:
                self._on_new_groups()
                self._progress.needs_warm_up = self._progress.step > 0
                self._compare()
            except RuntimeError as another:
                error = another
            else:
                return

    @property
    def _place(self) -> Place:
        feed = self._progress.feed
        progress = self._progress
        position = feed.position if feed else 0
        return Place(progress.loops, progress.step, progress.is_over, progress.verb, position)

    def _compare(self) -> bool:
        """Say where this rank is; False where no rank is anywhere, so that the run has to begin."""
        place = self._place if self._is_whole else NOWHERE
        target = self._handover.compare(place, self._control)
        if target is None:
            if self._progress.has_begun:  # whoever knew how far it was is gone
                raise SystemExit(EXIT_PEER_LOST)
            return False
        if target.is_over:
            self._progress.ends_at = target.step
        if not self._is_whole:
            self._progress.step, self._progress.verb = target.step, 0
            self._progress.need_feed().position = target.position
            self._progress.needs_warm_up = target.step > 0
        elif self.is_behind:
            self._is_whole = False
            report_pipe.send({"hold": False})
        return True

    @property
    def _control(self) -> "dist.ProcessGroup":
        assert self._groups.control is not None  # a world of one process has nobody to lose
        return self._groups.control
