"""Kubernetes quantities ("500m", "2Gi", "1e3") as numbers.

The planner uses them to size /dev/shm, to count accelerators and to choose the number of threads.
"""

import re
from decimal import Decimal

# Not every exponent: to compute 1e999999999 takes minutes, in which the operator would do nothing else.
_FORM = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d{1,2})?")
_LONGEST = 100  # characters
_FACTORS = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
_FACTORS |= {suffix: Decimal(1000) ** n for n, suffix in enumerate("kMGTPE", start=1)}
_FACTORS |= {f"{suffix}i": Decimal(1024) ** n for n, suffix in enumerate("KMGTPE", start=1)}


def parse(text: object) -> Decimal | None:
    """Return the number, or None if it is not a quantity: validation is left to the API server."""
    written = str(text).strip() if isinstance(text, str | int | float) else ""
    match = _FORM.fullmatch(written) if len(written) <= _LONGEST else None
    if match is None or isinstance(text, bool):
        return None
    number, suffix = match.groups()
    if not suffix:
        return Decimal(number)
    if suffix in _FACTORS:
        return Decimal(number) * _FACTORS[suffix]
    return Decimal(number + suffix)
