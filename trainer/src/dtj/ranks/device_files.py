"""Device files of GPUs: a container has only those of its own GPUs. Does not import torch."""

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

NVIDIA = "nvidia[0-9]*"
_OTHERS = ("nvmap", "dxg", "kfd")  # of NVIDIA on Jetson and under Windows; of AMD


def has_gpu(
    env: Mapping[str, str], folder: Path = Path("/dev"), files: tuple[str, ...] = (NVIDIA, *_OTHERS)
) -> bool:
    """Whether there is a GPU with one of these files that CUDA_VISIBLE_DEVICES does not hide."""
    is_hidden = env.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not is_hidden and any(any(folder.glob(each)) for each in files)


def gpus_visible(env: Mapping[str, str], folder: Path = Path("/dev")) -> int:
    """Number of NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves; no library is initialized."""
    gpus, chosen = len(list(folder.glob(NVIDIA))), env.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    words = (word.strip() for word in chosen.split(","))
    return min(gpus, len(list(takewhile(lambda word: word not in {"", "-1"}, words))))


def gpus_given(env: Mapping[str, str], folder: Path = Path("/dev")) -> int:
    """Number of NVIDIA GPUs of the container; 0 if CUDA_VISIBLE_DEVICES chooses among them."""
    return 0 if "CUDA_VISIBLE_DEVICES" in env else gpus_visible(env, folder)
