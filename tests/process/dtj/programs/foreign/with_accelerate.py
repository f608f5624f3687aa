"""The loop of Hugging Face Accelerate: prepare, backward, save_state."""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader
from toy import EPOCHS, data, die_if_told, net, note

out = Path(sys.argv[1])
accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
set_seed(3)
model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(data(), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

saved = sorted(out.glob("epoch-*"))
begin = 0
if saved:
    accelerator.load_state(str(saved[-1]))
    begin = int(saved[-1].name.removeprefix("epoch-")) + 1
note(out, accelerator.process_index, f"world {accelerator.num_processes} begins at {begin}")
for epoch in range(begin, EPOCHS):
    loader.set_epoch(epoch)
    die_if_told(out, accelerator.process_index, epoch)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
    accelerator.wait_for_everyone()
    accelerator.save_state(str(out / f"new-{epoch}"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (out / f"new-{epoch}").rename(out / f"epoch-{epoch}")
    accelerator.wait_for_everyone()
torch.save(accelerator.unwrap_model(model).state_dict(), out / f"weights-{accelerator.process_index}.pt")
accelerator.end_training()
