"""Fixtures that run the program of these tests; all tests need a GPU."""

from pathlib import Path

import pytest

from tests.gpu.training import NO_GPU, ON_GPU, TRIED_ON_CPU, Train, Trained, training


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip with the reason where there is no GPU; a run takes longer than other tests may."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skipif(not (ON_GPU or TRIED_ON_CPU), reason=NO_GPU))
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Runs of one test."""
    return training(tmp_path)


@pytest.fixture(scope="session")
def float32(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Sixteen steps of GPT-2 in float32, which the other number formats are compared with."""
    return training(tmp_path_factory.mktemp("float32"))("--micro-batch", 4, STEPS=16)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Eight steps of the small model on one rank, which those on two ranks are compared with."""
    return training(tmp_path_factory.mktemp("tiny"))(SHAPE="tiny", STEPS=8)
