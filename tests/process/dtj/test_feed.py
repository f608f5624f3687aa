"""Global batches, and this rank's part of them."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from dtj.data.feed import Feed
from dtj.data.user_loader import UserLoader
from tests.unit.dtj.feeds import feed


class Noise(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, _: int) -> torch.Tensor:
        return torch.rand(())


def tenfold(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([10 * x for x, _ in rows])}


@pytest.mark.parametrize("workers", [0, 1])
def test_collate_is_used_for_tensors_too(workers: int) -> None:
    f = feed(data=TensorDataset(torch.arange(4), torch.arange(4)), batch=4, collate=tenfold, workers=workers)
    assert sorted(next(iter(f.batch()))["x"].tolist()) == [0, 10, 20, 30]
    f.close()


def test_workers_of_the_users_own_loader_draw_other_noise_on_each_rank_and_in_each_epoch() -> None:
    """Equal seeds would give the samples of all ranks the same augmentation."""

    def draw(rank: int) -> list[float]:
        loader = DataLoader(Noise(), batch_size=2, num_workers=1)
        f = Feed(UserLoader(loader, rank=rank, size=2, seed=3, accumulate=1), device=torch.device("cpu"))
        found = []
        for _ in range(2):
            found += [float(noise) for micro_batch in f.batch() for noise in micro_batch]
            f.advance()
        f.close()
        return found

    first, again, other = draw(0), draw(0), draw(1)
    assert first == again
    assert len({*first, *other}) == 8
