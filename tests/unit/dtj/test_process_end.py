"""What agents and ranks do when they have ended."""

import sys
import weakref
from unittest.mock import Mock

import pytest
import torch

from dtj.agent import launch, process_end


class Own:
    """As an object of the program, with something to do at exit."""


def test_rank_exits_without_unregistering_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of kernels, in every rank; finalizers of the program still run."""
    registry: dict[weakref.finalize[..., object], object] = {}
    monkeypatch.setattr(weakref.finalize, "_registry", registry)
    library, own = torch.library.Library("dtj_rank_exit", "DEF"), Own()  # type: ignore[no-untyped-call]
    weakref.finalize(own, print, "saved")
    process_end.leave_operators()
    assert library
    assert [alive[0] for finalizer in registry if (alive := finalizer.peek())] == [own]


def test_agent_ends_its_process_with_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    monkeypatch.setattr(launch, "_Agent", lambda *_: Mock(run=lambda: 7))
    monkeypatch.setattr(process_end, "end", sys.exit)
    with pytest.raises(SystemExit, match="7"):
        launch.launch(lambda: None, Mock(), Mock())
