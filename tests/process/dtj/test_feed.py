"""Global batches, and this rank's part of them."""

import pytest
import torch
from torch.utils.data import TensorDataset

from tests.unit.dtj.feeds import feed


def tenfold(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([10 * x for x, _ in rows])}


@pytest.mark.parametrize("workers", [0, 1])
def test_collate_is_used_for_tensors_too(workers: int) -> None:
    f = feed(data=TensorDataset(torch.arange(4), torch.arange(4)), batch=4, collate=tenfold, workers=workers)
    assert sorted(next(iter(f.batch()))["x"].tolist()) == [0, 10, 20, 30]
    f.close()
