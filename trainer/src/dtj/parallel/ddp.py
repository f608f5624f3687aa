"""Data parallel: every rank holds the whole model, gradients are averaged while backward still runs."""

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtj.parallel.strategy import Strategy, check_trainable


class DataParallel(Strategy):
    """torch's DistributedDataParallel with weights of unequal shares (step/backward.py).

    It lays its buckets anew after the first backward, so that sums round differently from then on.
    """

    settles = True

    def wrap(self, model: nn.Module) -> nn.Module:
        """With rank 0's weights and synchronised gradients."""
        check_trainable(model)
        index = self.device.index
        # Gradients as views of the buckets: one copy of all gradients less in memory, and no copy in time.
        return DistributedDataParallel(
            model.to(self.device),
            device_ids=[index] if index is not None else None,
            gradient_as_bucket_view=True,
        )

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Without the `module.` prefix."""
        return unwrap(model)

    @contextlib.contextmanager
    def without_sync(self, models: list[nn.Module]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for model in models:
                if isinstance(model, DistributedDataParallel):
                    stack.enter_context(model.no_sync())
            yield

    @contextlib.contextmanager
    def evaluating(self, models: list[nn.Module]) -> Iterator[None]:
        """Like the others, and without DDP's own broadcast of buffers before each forward."""
        wrapped = [m for m in models if isinstance(m, DistributedDataParallel)]
        with super().evaluating(models):
            for model in wrapped:
                model.require_forward_param_sync = False
            try:
                yield
            finally:
                for model in wrapped:
                    model.require_forward_param_sync = True


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module, whose state has no `module.` prefixes."""
    return model.module if isinstance(model, DistributedDataParallel) else model
