"""Lines of a watch, of any length: one object can take many megabytes as JSON."""

from collections.abc import AsyncIterator

import aiohttp


async def lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield whole lines without their end; a line that the end of the stream cuts off is dropped."""
    parts: list[bytes] = []
    async for chunk in content.iter_any():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield b"".join((*parts, end))
            parts.clear()
        if rest:
            parts.append(rest)
