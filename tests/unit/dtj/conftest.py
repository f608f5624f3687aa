"""For the tests of the trainer that run in one process."""

import os

import pytest
import torch

from dtj.agent import alone

torch.set_num_threads(
    1
)  # two threads of each of two test processes would only wait for each other on two cores


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run alike in a shell that has the variables of a job or of torchrun."""
    for name in filter(alone.is_of_job, list(os.environ)):
        monkeypatch.delenv(name)
