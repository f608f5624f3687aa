"""In the manner of a torchrun tutorial: a trainer class, LOCAL_RANK for the device, RANK for the rest."""

import argparse
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from toy import data, die_if_told, net, note


class Trainer:
    """Trains `model` on this process's part of the data; continues from the snapshot if there is one."""

    def __init__(
        self, model: nn.Module, loader: "DataLoader[tuple[Tensor, ...]]", optimizer: torch.optim.Optimizer,
        snapshot: Path,
    ) -> None:  # fmt: skip
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.rank = int(os.environ["RANK"])
        self.device = f"cuda:{self.local_rank}" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device)
        self.loader = loader
        self.optimizer = optimizer
        self.snapshot = snapshot
        self.first_epoch = 0
        if snapshot.exists():
            self._load()
        self.model = DistributedDataParallel(self.model)

    def _load(self) -> None:
        found = torch.load(self.snapshot, map_location=self.device)
        self.model.load_state_dict(found["MODEL_STATE"])
        self.optimizer.load_state_dict(found["OPTIMIZER_STATE"])
        self.first_epoch = found["EPOCHS_RUN"]

    def _save(self, epoch: int) -> None:
        model = self.model.module.state_dict()
        optimizer = self.optimizer.state_dict()
        found = {"MODEL_STATE": model, "OPTIMIZER_STATE": optimizer, "EPOCHS_RUN": epoch + 1}
        torch.save(found, self.snapshot.with_suffix(".tmp"))
        self.snapshot.with_suffix(".tmp").replace(self.snapshot)

    def train(self, epochs: int) -> None:
        note(
            self.snapshot.parent, self.rank, f"world {os.environ['WORLD_SIZE']} begins at {self.first_epoch}"
        )
        for epoch in range(self.first_epoch, epochs):
            self.loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            die_if_told(self.snapshot.parent, self.rank, epoch)
            for source, targets in self.loader:
                self.optimizer.zero_grad()
                output = self.model(source.to(self.device))
                nn.functional.mse_loss(output, targets.to(self.device)).backward()
                self.optimizer.step()
            if self.rank == 0:
                self._save(epoch)
            torch.distributed.barrier()


def main(epochs: int, batch_size: int, folder: Path) -> None:
    init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(3)
    dataset: Dataset[tuple[Tensor, ...]] = data()
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(dataset))
    model = net()
    trainer = Trainer(
        model, loader, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), folder / "snapshot.pt"
    )
    trainer.train(epochs)
    torch.save(trainer.model.module.state_dict(), folder / f"weights-{os.environ['RANK']}.pt")
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="distributed training job")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--total-epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    main(args.total_epochs, args.batch_size, args.folder)
