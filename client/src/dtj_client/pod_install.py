"""Runs in a pod, not here: installs packages into a folder, beside those of the image.

python3 -c SOURCE FOLDER OPTIONS...   the options are those of pip install; FOLDER/site is for PYTHONPATH

The folder becomes an environment that sees the image's packages, so that what the image has, such as torch,
is not installed again. pip itself stays outside: what comes with it could hide packages of the image.
"""

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

_DEBIAN = Path("/usr/share/python-wheels")


def main(folder: Path, options: list[str]) -> int:
    """Install; return pip's exit code."""
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
    return subprocess.run(command, check=False).returncode


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
