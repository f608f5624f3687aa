"""Runs in a pod, not here: installs packages into a folder, beside those of the image.

python3 -c SOURCE FOLDER OPTIONS...   the options are those of pip install; FOLDER/site is for PYTHONPATH

The folder becomes an environment that sees the image's packages, so that what the image has, such as torch,
is not installed again. pip itself stays outside: what comes with it could hide packages of the image.
"""

import importlib.util
import re
import subprocess
import sys
import venv
from pathlib import Path

_DEBIAN = Path("/usr/share/python-wheels")
_BAD_RECIPE = 78  # the exit code after which the operator does not restart the job
# What pip says of requirements that no try can meet, and of a network or an index that may work the next
# time: pip also finds no package if it could not ask.
_FINAL = re.compile(
    "No matching distribution found|DO NOT MATCH THE HASHES|ResolutionImpossible|Invalid requirement"
    "|Hashes are required|requires a different Python|Cannot find command 'git'"
    r"|Could not open requirements file|due to an OSError: \[Errno 2\]|is not a valid wheel filename"
    "|is not installable|does not appear to be a Python project|setuptools-scm was unable"
)
_PASSING = re.compile(
    "connection broken|Could not fetch URL|HTTPError|HTTP error|ConnectionError|Temporary failure|timed out"
)
# Of a proxy that signs by itself, as companies have them, or of an index of one's own: no try changes that.
_UNTRUSTED = re.compile("CERTIFICATE_VERIFY_FAILED")
_TRUST = (
    "pip does not trust the certificate of the package index, or of a proxy: --env PIP_CERT=FILE names "
    "its authority's, such as ca.crt in the folder of the code; --env PIP_TRUSTED_HOST=HOST skips the check"
)


def main(folder: Path, options: list[str]) -> int:
    """Install; return pip's exit code, or _BAD_RECIPE if no other try can succeed."""
    pip = _pip()
    if pip is None:
        print("the image has neither pip nor ensurepip: build an image with the packages", file=sys.stderr)
        return 1
    venv.create(folder, symlinks=True, clear=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "image.pth").write_text("\n".join(each for each in sys.path if each.endswith("-packages")))
    (folder / "site").symlink_to(site)
    quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command = [str(folder / "bin/python"), *pip, "install", "--no-cache-dir", *quiet, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as installing:
        assert installing.stderr is not None
        found: set[re.Pattern[str]] = set()
        for line in installing.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            found |= {each for each in (_FINAL, _PASSING, _UNTRUSTED) if each.search(line)}
    if not installing.returncode:
        return 0
    if _UNTRUSTED in found:  # also says that the connection broke
        print(_TRUST, file=sys.stderr)
        return _BAD_RECIPE
    if {_FINAL, _PASSING} <= found:  # pip's last line only says that it found no package
        why = "the package index could not be reached; --env PIP_INDEX_URL=... names another one"
        print(why, file=sys.stderr)
    return _BAD_RECIPE if _FINAL in found and _PASSING not in found else installing.returncode


def _pip() -> list[str] | None:
    """How Python runs pip: the image's, or the wheel that Python has for new environments."""
    if importlib.util.find_spec("pip"):
        return ["-m", "pip"]
    folders = [_DEBIAN]
    if (found := importlib.util.find_spec("ensurepip")) and found.origin:
        folders.append(Path(found.origin).parent / "_bundled")
    wheels = [wheel for each in folders for wheel in each.glob("pip-*.whl")]
    return [str(wheels[0] / "pip")] if wheels else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
