"""A LightningModule and its Trainer, which detects its launcher by itself."""

import os
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from toy import EPOCHS, data, die_if_told, net, note

out = Path(sys.argv[1])


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def on_train_start(self) -> None:
        note(out, self.global_rank, f"world {self.trainer.world_size} begins at {self.current_epoch}")

    def on_train_epoch_start(self) -> None:
        die_if_told(out, self.global_rank, self.current_epoch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


pl.seed_everything(3)
module = Regression()
trainer = pl.Trainer(
    accelerator="auto",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=EPOCHS,
    default_root_dir=out,
    callbacks=[ModelCheckpoint(dirpath=out, filename="state", enable_version_counter=False)],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
saved = out / "state.ckpt"
trainer.fit(
    module,
    DataLoader(data(), batch_size=8, shuffle=True),
    ckpt_path=str(saved) if saved.exists() else None,
)
torch.save(module.net.state_dict(), out / f"weights-{trainer.global_rank}.pt")
