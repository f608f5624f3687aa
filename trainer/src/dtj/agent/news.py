"""What the ranks of this node say and do -> the coordinator, /status, and one line of the log."""

from collections.abc import Callable, Iterable
from typing import Any

from dtj.agent import grace, report
from dtj.agent.boards import Boards, Sign
from dtj.agent.child import Child
from dtj.agent.link import Message
from dtj.agent.report import Ending
from dtj.agent.status import Status


class News:
    """Called by ranks.py for whatever happens to a rank.

    tell     tells the coordinator
    say      tells people
    grace_s  that the pod has to end; None where nobody says
    """

    def __init__(
        self,
        status: Status,
        boards: Boards,
        *,
        tell: Callable[[Message], None],
        say: Callable[[str], None],
        grace_s: float | None,
    ) -> None:
        self._status = status
        self._boards = boards
        self._tell = tell
        self._say = say
        self._grace_s = grace_s
        self._last = ""
        self._has_warned = False

    def started(self, child: Child) -> None:
        """It was forked."""
        self._status.started(child.rank, child.pid)

    def reported(self, child: Child, fields: dict[str, Any]) -> None:
        """It says something of itself, see telemetry/report_pipe.py."""
        match fields:
            case {"ready": generation}:
                child.uses_dtj = True
                self._tell({"ready": [child.rank, generation]})
            case {"hold": holds}:
                child.holds = holds
                self._tell({"hold": child.rank, "holds": holds})
            case {"unformed": generation, "message": why}:
                self._say(f"rank {child.rank} could not open its groups: {why}")
                self._tell({"unformed": generation})
            case {"lost": why, "generation": generation}:
                self._tell({"lost": child.lost(why).to_json(), "generation": generation})
            case {"failure": _}:
                self._tell({"failing": child.failing().to_json(), "generation": child.generation})
            case _:
                if "saveSeconds" in fields:
                    self._warn_of_grace(fields["saveSeconds"])
                self._status.hear(child.rank, fields)

    def ended(self, child: Child) -> None:
        """It is buried, its last lines are shown."""
        ending = child.ending
        assert ending is not None
        self._hear_board(child.rank, self._boards.read(child))
        self._status.ended(child.rank, failed=ending.failed)
        if ending.by_agent:
            return
        self._tell({"ended": ending.to_json(), "generation": child.generation})
        if ending.failed and ending.cause != "PeerLost":
            self._say_once(_headline(child, ending))

    def tick(self, living: Iterable[Child]) -> None:
        """Time has passed: which ranks have done something since the last time?"""
        signs = self._boards.tick(living)
        for rank, sign in signs.items():
            self._hear_board(rank, sign)
        if signs:
            self._tell({"signs": signs})

    def _hear_board(self, rank: int, sign: Sign | None) -> None:
        if sign and sign.step is not None:
            self._status.hear(rank, {"step": sign.step})

    def _warn_of_grace(self, save_s: float) -> None:
        found = grace.warning(self._grace_s, save_s=save_s, step_s=self._boards.step_s)
        if found and not self._has_warned:
            self._has_warned = True
            self._say(found)

    def _say_once(self, message: str) -> None:
        """Ranks with the same mistake say the same."""
        if message != self._last:
            self._last = message
            self._say(message)


def _headline(child: Child, ending: Ending) -> str:
    """The cause in one line of the log; a message for people is printed once for all ranks."""
    if child.is_for_people():
        return ending.message
    if ending.message:
        return f"rank {ending.rank} failed: {ending.message.splitlines()[-1]}"
    return report.sentence(ending, ending.step)
