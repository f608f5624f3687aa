"""Requests about hundreds of namespaces: neither one after the other, nor all at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

AT_ONCE = 32

T = TypeVar("T")
R = TypeVar("R")


async def bounded(do: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """Return what `do` returns for each item; AT_ONCE of the calls are under way at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> R:
        async with places:
            return await do(item)

    return await asyncio.gather(*map(one, items))
