"""How a node is launched, apart from how many ranks it has: flags of the command and variables of the pod."""

from dataclasses import dataclass
from pathlib import Path

from dtj.agent.protocol import RestartBudget


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to launch, apart from how many.

    shown            ranks whose lines are printed; None prints all
    as_json          every line an object
    port             for /status; None serves nothing
    host             interface of that port
    termination_log  where the termination message goes; None writes none
    job, uid, attempt  which job, as the operator says
    budget           how many restarts in place
    grace_s          seconds that the pod has to end once it is asked to; None where nobody says
    hang_s           seconds without a step that are a hang; None derives them from the steps
    ends_hung        a rank that is to blame for a hang is ended; if not, it is only named
    """

    budget: RestartBudget
    shown: frozenset[int] | None = None
    as_json: bool = False
    port: int | None = None
    host: str = "127.0.0.1"
    termination_log: Path | None = None
    job: str = ""
    uid: str = ""
    attempt: int = 0
    grace_s: float | None = None
    hang_s: float | None = None
    ends_hung: bool = True
