"""A JSON object as Python holds it."""

from typing import Any

Json = dict[str, Any]
