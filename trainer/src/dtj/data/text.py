"""Text as windows of bytes: a map-style dataset for language models, without a tokenizer or a download."""

import importlib.util
from pathlib import Path

import numpy as np
import torch

from dtj.errors import RecipeError, whole

VOCABULARY = 256


class Windows:
    """Consecutive windows of a text; each byte but the first is predicted exactly once.

    A batch is a pair of (k, context) int64 tensors: the bytes, and the byte that follows each of them.
    Bytes after the last full window are left out.
    """

    def __init__(self, text: bytes, *, context: int) -> None:
        self._context = whole(context, "context is", least=1, fix="correct context")
        if len(text) <= context:
            raise RecipeError(
                f"the text has {len(text)} bytes, fewer than one window of {context} and the byte after it",
                fix="use more text or a smaller context",
            )
        self._bytes = np.frombuffer(text, dtype=np.uint8)

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // self._context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = range(len(self))[index] * self._context
        window = torch.from_numpy(self._bytes[start : start + self._context + 1].astype(np.int64))
        return window[:-1], window[1:]


def python_sources(package: str, *, limit: int) -> list[bytes]:
    """Contents of the Python files of an installed package, sorted by path, at most `limit` bytes in all.

    The same on every machine that has the same version of the package.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise RecipeError(f"the package {package!r} is not installed", fix="install it with pip")
    root = Path(spec.submodule_search_locations[0])
    files, size = [], 0
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        text = path.read_bytes()
        if text and size + len(text) <= limit:
            files.append(text)
            size += len(text)
    return files
