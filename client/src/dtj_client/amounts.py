"""What a container asks for: accelerators, and amounts of CPUs and memory. Pure."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Json

GPU = "nvidia.com/gpu"
# Accelerators for each of which the operator starts a rank; and all resources whose names end in /gpu.
COUNTED = ("google.com/tpu", "habana.ai/gaudi", "gpu.intel.com/xe", "gpu.intel.com/i915")
# Other names of accelerators and of their parts, such as nvidia.com/mig-3g.40gb, nvidia.com/gpu.shared,
# aws.amazon.com/neuron and volcano.sh/vgpu-number. A device for a network or a file system is none.
_ACCELERATOR = re.compile(
    r"nvidia\.com/mig-.+|amd\.com/[a-z]px.*|(?=.*/).*(gpu|gaudi|neuron|ascend|\b([tn]pu|mlu|dcu|gcu))",
    re.IGNORECASE,
)
AMOUNT = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
SMALLEST_MEMORY = 2**20  # bytes; less is a number with another unit than was meant
_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, None: 1.0}
_UNITS |= {letter: 1000.0**power for power, letter in enumerate("kMGTPE", 1)}
_UNITS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)}


def limits_of(container: Json) -> Json:
    """The limits of a container, empty if it has none."""
    found: Json = (container.get("resources") or {}).get("limits") or {}
    return found


def counted(amounts: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the resources that `processesPerReplica: auto` counts."""
    return {name: amounts[name] for name in amounts if name.endswith("/gpu") or name in COUNTED}


def accelerators(amounts: Mapping[str, Any], named: Collection[str] = ()) -> dict[str, Any]:
    """Those of the resources that are accelerators, or parts of one.

    named  what the user says to be one, such as by --gpus example.com/device=1
    """
    return {name: amounts[name] for name in amounts if name in named or _ACCELERATOR.match(name)}


def is_on_cpus(container: Json, named: Collection[str] = ()) -> bool:
    """Whether a container asks for no accelerator, neither by a number nor by a resource claim."""
    counts = accelerators(limits_of(container), named).values()
    claims = (container.get("resources") or {}).get("claims")
    return not claims and all(str(count) == "0" for count in counts)


def number(amount: str) -> float | None:
    """The number that Kubernetes reads from a text such as 500m, 16Gi or 1e3; None: it is not an amount."""
    found = AMOUNT.fullmatch(amount)
    if not found:
        return None
    digits, unit = found.groups()
    return float(digits) * _UNITS[unit] if unit in _UNITS else float(amount)


def check(*, cpu: str, memory: str) -> None:
    """Raise ClientError for what is not an amount, or is not meant; empty: not asked for."""
    if cpu and number(cpu) is None:
        raise ClientError(f"cpu: {cpu!r} is not an amount", "write a number, or such as 500m")
    size = number(memory)
    if memory and size is None:
        raise ClientError(f"memory: {memory!r} is not an amount", "write such as 512Mi, 16Gi or 16G")
    if size is not None and size < SMALLEST_MEMORY:
        digits = re.split(r"[a-zA-Z]", memory)[0]
        raise ClientError(
            f"memory: {memory} is only {size:g} bytes", f"write the unit, such as {digits}Mi or {digits}Gi"
        )
