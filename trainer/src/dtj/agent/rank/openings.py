"""Programs may destroy the default process group and open it again, as for one experiment after another.

torch gives each opening the same names in the same store. A rank that is faster than the others finds their
addresses of the time before, and fails to connect, or waits. So from the second opening on, each has a part
of the store for itself.

Others set MASTER_PORT themselves, as tutorials do. The agent serves no store there, so rank 0 must.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from dtj import contract

_Find = Callable[..., Iterator[tuple[Any, int, int]]]

_opened: Counter[tuple[str, int]] = Counter()  # by the URL without the rank, and the number of ranks


def separate() -> None:
    """Let `dist.init_process_group` do so in this process, which is a rank."""
    from torch.distributed.rendezvous import _rendezvous_handlers  # noqa: PLC0415 - imports torch

    port = os.environ[contract.MASTER_PORT]
    for scheme in ("env", "tcp"):
        _rendezvous_handlers[scheme] = _separated(_rendezvous_handlers[scheme], port)


def _separated(find: _Find, served: str) -> _Find:
    from torch.distributed.distributed_c10d import PrefixStore  # noqa: PLC0415 - imports torch

    def found(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
        if os.environ.get(contract.MASTER_PORT) != served:
            os.environ[contract.USE_AGENT_STORE] = str(False)
        for store, rank, size in find(url, **options):
            opening = (url.partition("?")[0], size)
            number = _opened[opening]
            _opened[opening] += 1
            yield (PrefixStore(f"opening-{number}", store) if number else store), rank, size

    return found
