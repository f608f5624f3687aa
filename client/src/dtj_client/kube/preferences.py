"""The user's preferences for kubectl, the file kuberc, for a command whose answer this package reads.

Some of them would change the answer: with `interactive: "true"` for `delete`, kubectl asks, reads no answer,
deletes nothing and succeeds. So kubectl gets a copy of the file without defaults of options. All else stays,
such as which programs may log in.
"""

import atexit
import functools
import os
from pathlib import Path

_FIELDS = ("defaults", "overrides")  # with options: in v1beta1 and v1alpha1


def environment() -> dict[str, str] | None:
    """The variables for kubectl; None: those of this process."""
    try:
        kuberc = Path(os.environ.get("KUBERC") or Path.home() / ".kube" / "kuberc")
        copy = _copy(kuberc.read_text())
    except (OSError, RuntimeError, UnicodeDecodeError):  # no such file, also with KUBERC=off; or no home
        return None
    return os.environ | {"KUBERC": copy} if copy else None


@functools.cache
def _copy(text: str) -> str | None:
    """Write the copy for this process, and return its path; None if there is nothing to leave out."""
    if not any(field in text for field in _FIELDS):
        return None
    import tempfile  # noqa: PLC0415 - with yaml, 15 ms that are needed only here

    import yaml  # noqa: PLC0415

    try:
        found = [each for each in yaml.safe_load_all(text) if isinstance(each, dict)]
    except (yaml.YAMLError, ValueError):  # kubectl says what is wrong
        return None
    kept = [{name: value for name, value in each.items() if name not in _FIELDS} for each in found]
    with tempfile.NamedTemporaryFile("w", prefix="kuberc-", delete=False) as copy:
        yaml.safe_dump_all(kept, copy)
    atexit.register(_remove, copy.name, os.getpid())
    return copy.name


def _remove(path: str, made_by: int) -> None:
    if os.getpid() == made_by:  # else a fork would remove the file of its parent
        Path(path).unlink(missing_ok=True)
