"""Programs that run in a pod, not here. They need nothing but Python, because the pod may have no more."""

from importlib.resources import files


def program(name: str) -> str:
    """Return the source of one of these programs, for `python -c`."""
    return (files(__name__) / f"{name}.py").read_text()
