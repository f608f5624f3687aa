"""What a rank does if it waits for a lost one and its pod is asked to stop, or if all others are lost."""

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dtj.contract import EXIT_PEER_LOST, EXIT_SIGNAL
from dtj.data.feed import Feed
from dtj.data.source import Source
from dtj.errors import Stopped
from dtj.healing.handover import NO_STATE, Handover, ProgramPoint
from dtj.healing.recovery import Recovery
from dtj.ranks import exchange
from dtj.ranks.world import World
from dtj.step.progress import Progress


def lose_a_peer(*_: Any) -> None:
    raise RuntimeError("gloo: Connection closed by peer")


def stop(_error: RuntimeError) -> None:
    raise Stopped(EXIT_SIGNAL + signal.SIGTERM)


def recovery_of(
    groups: Any, checkpointer: Any = None, *, save_alone: Callable[[], object] = lambda: None
) -> Recovery:
    return Recovery(
        groups=groups,
        checkpointer=checkpointer,
        progress=Progress(feed=Feed(Source(), device=torch.device("cpu"))),
        on_new_groups=lambda: None,
        save_alone=save_alone,
    )


def test_newcomer_ends_if_no_rank_holds_the_state_that_it_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not shared its first weights with the other ranks, so it cannot start a run either."""
    monkeypatch.setattr(Handover, "compare", lambda *_, **__: None)
    newcomer = recovery_of(SimpleNamespace(is_healing=True, control=object()))
    with pytest.raises(SystemExit, match=str(EXIT_PEER_LOST)):
        newcomer.joins_survivors()


@pytest.mark.parametrize(
    ("rank", "is_evaluation", "done"),
    [
        pytest.param(0, False, ["save"], id="rank 0"),
        pytest.param(0, True, [], id="the program may have exchanged the weights for an evaluation"),
        pytest.param(1, False, ["act", "save"], id="rank 0 may be lost alone"),
        pytest.param(4, False, ["act", "save"], id="rank 0 may be lost with its pod"),
        pytest.param(5, False, [], id="one rank of each pod is enough"),
        pytest.param(8, False, [], id="and two pods"),
    ],
)
def test_who_saves_alone(rank: int, is_evaluation: bool, done: list[str]) -> None:
    found: list[str] = []
    world = World(rank=rank, size=12, local_rank=rank % 4, local_size=4)
    groups: Any = SimpleNamespace(world=world, reform=stop, can_heal=True)
    checkpointer: Any = SimpleNamespace(saved_step=None, act_for_rank_0=lambda: found.append("act"))
    recovery = recovery_of(groups, checkpointer, save_alone=lambda: found.append("save"))
    recovery.mark_restored()
    with pytest.raises(Stopped):
        recovery.run_verb(lose_a_peer, is_evaluation=is_evaluation)
    assert found == done


def test_survivor_one_step_behind_leaves_the_work_after_it_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank was lost in the last message of a backward: one survivor had its result, this one had not."""

    def points(mine: ProgramPoint, **_: Any) -> list[ProgramPoint]:
        return [ProgramPoint(1, 8, 0, 0, 0), mine, NO_STATE]

    monkeypatch.setattr(exchange, "all_gather_numbers", points)
    monkeypatch.setattr("dtj.healing.recovery.report_pipe.send", lambda *_, **__: None)
    groups: Any = SimpleNamespace(can_heal=True, reform=lambda _error: None, control=object())
    recovery = recovery_of(groups)
    recovery.progress.loops, recovery.progress.step = 1, 7
    recovery.mark_restored()
    monkeypatch.setattr(recovery.progress.feed, "advance", lambda: None)
    recovery.run_verb(lose_a_peer)
    recovery.progress.advance()

    found: list[int] = []
    recovery.between_steps(lambda epoch, _is_last: found.append(epoch), 0, is_last=False)
    assert found == []
