"""Verbs that take all ranks, and outlive the loss of one: repeated, left out, or made up for.

Before it stands `run.py`, which says what a verb does and how it is undone; after it `team.py`, which joins
the next process groups, and `heal.py`, which finds out who is behind and hands over the state.
"""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from dtj.checkpoint.keeper import Keeper
from dtj.contract import EXIT_PEER_LOST
from dtj.errors import Stopped
from dtj.heal import NOWHERE, Place, Reunion
from dtj.progress import Progress
from dtj.team import Team
from dtj.watch import channel

T = TypeVar("T")


class Elastic:
    """This rank among others that may be lost.

    on_new_groups  called after a change of process groups, before anything is exchanged over them
    """

    def __init__(
        self,
        *,
        team: Team,
        keeper: Keeper,
        progress: Progress,
        on_new_groups: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._team = team
        self._keeper = keeper
        self._progress = progress
        self._on_new_groups = on_new_groups
        self._say = say
        self._reunion = Reunion()
        self._is_whole = False  # this rank's state is that of its place in the program

    @property
    def is_behind(self) -> bool:
        """The others wait further on; until there, everything is done without the model and without them."""
        return self._reunion.is_behind(self._place)

    def do(self, act: Callable[[], T], *, undo: Callable[[], None] | None, stand_in: T) -> T:
        """A verb that takes all ranks: repeated where one is lost, left out where the others have done it."""
        while True:
            self.meet()
            if self.is_behind:
                result = stand_in
                break
            try:
                result = act()
                break
            except RuntimeError as error:
                if undo and self._team.can_heal:
                    undo()
                self.heal(error)
        self._progress.verb += 1
        return result

    def joins(self) -> bool:
        """The others hold the run in memory, and the state comes where they wait."""
        return self._team.is_healing and self._compare()

    def complete(self) -> None:
        """This rank has restored what there was: it is where it says."""
        self._is_whole = True

    def hold(self) -> None:
        """Tell the agent that this rank need not be restarted when another one is."""
        if self._is_whole and self._team.can_heal and self._keeper.parts and self._team.control is not None:
            channel.send({"hold": True}, wait_s=1.0)

    def meet(self) -> None:
        """Where the others wait: take over the state; where others are behind: hand it over."""
        while self._reunion.target is not None and not self.is_behind:
            try:
                taken = self._reunion.meet(self._control, pack=lambda: self._keeper.pack(self._progress.step))
                if taken is not None:
                    self._keeper.unpack(taken)
                    self._is_whole = True
                    self.hold()
            except RuntimeError as error:
                self.heal(error)

    def heal(self, error: RuntimeError) -> None:
        """Join the next generation and find out who is where; raise the error where it is no lost peer's."""
        while True:
            try:
                self._team.reform(error)
            except Stopped:
                saved = self._keeper.saved_step
                rest = "nothing was saved" if saved is None else f"the newest checkpoint is of step {saved}"
                self._say(f"stopped at step {self._progress.step}; {rest}")
                raise
            try:
                self._on_new_groups()
                self._progress.unsettled = self._progress.step > 0
                self._compare()
            except RuntimeError as another:
                error = another
            else:
                return

    @property
    def _place(self) -> Place:
        feed = self._progress.feed
        return Place(self._progress.step, self._progress.verb, feed.position if feed else 0)

    def _compare(self) -> bool:
        """Say where this rank is; False where no rank is anywhere, so that the run has to begin."""
        place = self._place if self._is_whole else NOWHERE
        target = self._reunion.compare(place, self._control)
        if target is None:
            if self._progress.has_begun:  # whoever knew how far it was is gone
                raise SystemExit(EXIT_PEER_LOST)
            return False
        if not self._is_whole:
            self._progress.step, self._progress.verb = target.step, 0
            self._progress.need_feed().position = target.position
            self._progress.unsettled = target.step > 0
        elif self.is_behind:
            self._is_whole = False
            channel.send({"hold": False})
        return True

    @property
    def _control(self) -> "dist.ProcessGroup":
        assert self._team.control is not None  # a world of one process has nobody to lose
        return self._team.control
