"""Mistakes in common tutorials, in numbers: the digits and their CNN; one process plays all ranks."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from dtj.recipes import digits
from tests.bench import report

RANKS, MAX_NORM = 4, 0.5


def main() -> None:
    """Measure and write the section of the page."""
    torch.manual_seed(0)
    rows = [
        constant_epoch(),
        padded_evaluation(),
        mean_of_means(),
        clip_before_sync(),
        summed(),
        whole_module(),
    ]
    report.write("mistakes", report.table(["mistake", "what was seen"], rows))


def constant_epoch() -> tuple[str, str]:
    """set_epoch with the wrong variable."""
    sampler: DistributedSampler[int] = DistributedSampler(range(1437), num_replicas=RANKS, rank=0)  # type: ignore[arg-type]
    orders = set()
    for _ in range(10):
        sampler.set_epoch(10)
        orders.add(tuple(sampler))
    return "`set_epoch(epochs)` for `set_epoch(epoch)`", f"10 epochs, {len(orders)} order of the samples"


def padded_evaluation() -> tuple[str, str]:
    """A sampler that gives every rank the same number of samples."""
    seen = [i for rank in range(7) for i in DistributedSampler(range(360), num_replicas=7, rank=rank)]  # type: ignore[arg-type, var-annotated]
    once = len(set(seen))
    return "evaluation with `DistributedSampler`", f"7 ranks count {len(seen)} samples of {once}"


def mean_of_means() -> tuple[str, str]:
    """A last batch of 45 samples over 4 ranks, in micro-batches of 8."""
    whole = list(range(45))
    shares = [whole[rank::RANKS] for rank in range(RANKS)]
    wrong = mean([mean([gradient(s[i : i + 8]) for i in range(0, len(s), 8)]) for s in shares])
    return "the mean of the micro-batches' means", f"gradient off by {off(wrong, gradient(whole)):.0%}"


def clip_before_sync() -> tuple[str, str]:
    """Each rank scales its own gradient; one rank has two wrong labels."""
    shares = [
        gradient(range(rank * 16, rank * 16 + 16), wrong_labels=8 * (rank == 0)) for rank in range(RANKS)
    ]
    wrong, right = mean([clipped(g) for g in shares]), clipped(mean(shares))
    cosine = nn.functional.cosine_similarity(wrong, right, dim=0)
    ratio = float(wrong.norm() / right.norm())
    return (
        "clipping before the sync",
        f"update {ratio:.2f} times as long, its cosine with the right one {cosine:.3f}",
    )


def summed() -> tuple[str, str]:
    """all_reduce by hand with its default, SUM."""
    shares = [gradient(range(rank * 16, rank * 16 + 16)) for rank in range(RANKS)]
    ratio = float(torch.stack(shares).sum(0).norm() / mean(shares).norm())
    return "`all_reduce(p.grad)` without a division", f"{RANKS} ranks: a gradient {ratio:.0f} times as long"


def whole_module() -> tuple[str, str]:
    """torch.save of the wrapped model."""
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        torch.save(DistributedDataParallel(nn.Linear(2, 2)), buffer)
        dist.destroy_process_group()
    said = []
    for weights_only in (True, False):
        buffer.seek(0)
        try:
            torch.load(buffer, weights_only=weights_only)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the user sees
            said.append(str(error).strip().splitlines()[0].split(".")[0])
    return "`torch.save(ddp_model)`", "; ".join(f"load fails: {text}" for text in said)


def gradient(samples: Sequence[int], *, wrong_labels: int = 0) -> Tensor:
    """Gradient of the mean loss over some samples, as one vector."""
    data, _ = digits.split()
    torch.manual_seed(1)
    model = digits.recipe().model()
    x, y = data.tensors[0][list(samples)], data.tensors[1][list(samples)].clone()
    y[:wrong_labels] = (y[:wrong_labels] + 5) % 10
    loss = nn.functional.cross_entropy(model(x), y)
    found = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([g.flatten() for g in found])


def mean(vectors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(vectors)).mean(0)


def clipped(vector: Tensor) -> Tensor:
    return vector * min(1.0, MAX_NORM / float(vector.norm()))


def off(found: Tensor, right: Tensor) -> float:
    return float((found - right).norm() / right.norm())
