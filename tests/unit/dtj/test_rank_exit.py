"""What a rank does when its program has ended."""

import weakref

import pytest
import torch

from dtj.agent.rank import main


class Own:
    """As an object of the program, with something to do at exit."""


def test_rank_exits_without_unregistering_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of kernels, in every rank; finalizers of the program still run."""
    registry: dict[weakref.finalize[..., object], object] = {}
    monkeypatch.setattr(weakref.finalize, "_registry", registry)
    library, own = torch.library.Library("dtj_rank_exit", "DEF"), Own()  # type: ignore[no-untyped-call]
    weakref.finalize(own, print, "saved")
    main._leave_operators()
    runs_at_exit = {finalizer.atexit: alive[0] for finalizer in registry if (alive := finalizer.peek())}
    assert runs_at_exit == {False: library, True: own}
