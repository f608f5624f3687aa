"""Predict the next byte of Python source code: the files of the installed torch package."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from dtj.data import text
from dtj.models.gpt import GPT, GPT2_124M, Shape, generate
from dtj.parallel.parallelize import is_compiled
from dtj.recipe import Recipe
from dtj.recipes import check_rate

_HEAD_WIDTH = 32
_CLIP = 1.0  # as in the GPT papers; without it, a single batch sometimes raises the loss by tenths
_HELD_OUT = 10  # one file in ten
_PROMPT = b"def forward(self, "
_TEMPERATURE = 0.7


def recipe(  # noqa: PLR0913, PLR0917 - its arguments are those of the command line
    epochs: int = 2,
    lr: float = 2e-3,
    global_batch: int = 32,
    context: int = 128,
    layers: int = 4,
    width: int = 128,
    kilobytes: int = 1000,
    sample: int = 240,
    seed: int = 0,
) -> Recipe:
    """Train a small byte-level GPT on the Python sources of torch, then print `sample` bytes of its text.

    Logs bits per byte on held-out files: 8 is random guessing, gzip needs about 2. Takes minutes on a
    laptop CPU.
    """
    heads = next(heads for heads in range(max(1, width // _HEAD_WIDTH), 0, -1) if width % heads == 0)
    shape = Shape(vocabulary=text.VOCABULARY, context=context, layers=layers, heads=heads, width=width)
    return _language_model(
        shape, epochs=epochs, lr=lr, global_batch=global_batch, kilobytes=kilobytes, sample=sample, seed=seed
    )


def gpt2(
    epochs: int = 1,
    lr: float = 6e-4,
    global_batch: int = 480,
    kilobytes: int = 20_000,
    sample: int = 240,
    seed: int = 0,
) -> Recipe:
    """Train GPT-2 with 124 million parameters, for GPUs.

    A step has 480 windows of 1,024 tokens, about half a million. The shape is the published one; the tokens
    are bytes, so most of the vocabulary is unused.
    """
    return _language_model(
        GPT2_124M,
        epochs=epochs,
        lr=lr,
        global_batch=global_batch,
        kilobytes=kilobytes,
        sample=sample,
        seed=seed,
    )


def _language_model(
    shape: Shape, *, epochs: int, lr: float, global_batch: int, kilobytes: int, sample: int, seed: int
) -> Recipe:
    check_rate(lr)
    train, held_out = split(context=shape.context, limit=1000 * kilobytes)
    return Recipe(
        model=lambda: GPT(shape),
        data=train,
        loss=_loss,
        optimizer=lambda parameters: _adamw(list(parameters), lr),
        schedule=_warm_up_and_decay,
        clip=_CLIP,
        global_batch=global_batch,
        epochs=epochs,
        held_out=held_out,
        score=_bits_per_byte,
        metric="bits_per_byte",
        tokens=shape.context,
        sample=lambda model: _write(model, sample, context=shape.context),
        seed=seed,
    )


def split(*, context: int, limit: int) -> tuple[text.Windows, text.Windows]:
    """(train, held out) windows of whole files, at most `limit` bytes; fixed for a version of torch."""
    files = text.python_sources("torch", limit=limit)
    held_out = files[::_HELD_OUT]
    train = [file for number, file in enumerate(files) if number % _HELD_OUT]
    return tuple(text.Windows(b"".join(part), context=context) for part in (train, held_out))  # type: ignore[return-value]


def _loss(model: nn.Module, mb: Any) -> torch.Tensor:
    loss_of = _compiled_cross_entropy() if is_compiled(model) else cross_entropy
    return loss_of(model(mb.x).flatten(0, 1), mb.y.flatten())


@functools.cache
def _compiled_cross_entropy() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """It does not write the logits to memory once more in float32, nor their probabilities.

    Only made if needed: the compiler takes a second to import.
    """
    return torch.compile(cross_entropy)


def _adamw(weights: list[nn.Parameter], lr: float) -> Optimizer:
    # On GPUs one kernel updates all weights: torch does this only if asked.
    fused = all(weight.is_cuda for weight in weights) or None
    return AdamW(weights, lr=lr, betas=(0.9, 0.95), weight_decay=0.1, fused=fused)


def _warm_up_and_decay(optimizer: Optimizer, steps: int) -> LRScheduler:
    """Linear warm-up over the first twentieth of the steps, then cosine decay to a tenth of the rate."""
    warm_up = max(1, steps // 20)

    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        done = (step - warm_up) / max(1, steps - warm_up)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * done))

    return LambdaLR(optimizer, factor)


def _bits_per_byte(model: nn.Module, mb: Any) -> torch.Tensor:
    """(k,) bits per byte, the mean over each window."""
    losses = cross_entropy(model(mb.x).transpose(1, 2), mb.y, reduction="none")
    return losses.mean(1) / math.log(2)


def _write(model: nn.Module, tokens: int, *, context: int) -> str:
    device = next(p.device for p in model.parameters() if not p.is_meta)  # those of other stages are
    prompt = torch.tensor(list(_PROMPT), device=device)
    generated = generate(model, prompt, tokens=tokens, context=context, temperature=_TEMPERATURE, seed=0)
    return bytes(min(token, text.VOCABULARY - 1) for token in generated.tolist()).decode(errors="replace")
