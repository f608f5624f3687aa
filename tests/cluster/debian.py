"""Installs Debian packages and finds their mirror. Without root, the error names the missing packages."""

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from tests.cluster import config, proc
from tests.cluster.errors import ClusterError

PATIENCE_S = 600  # to wait for another process that installs packages


def can_install() -> bool:
    """Whether we may add Debian packages to this machine."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(*packages: str, why: str) -> None:
    """Install the packages that this machine lacks. Safe to call from several processes."""
    if all(map(installed, packages)):
        return
    names = " ".join(package for package in packages if not installed(package))
    if not can_install():
        raise ClusterError(f"{why}: missing Debian packages: {names}", fix=f"sudo apt-get install {names}")
    with proc.lock(config.cache() / "locks" / "apt"):
        # Another process may have installed them while we waited.
        missing = [package for package in packages if not installed(package)]
        if missing:
            add(missing, why)


def program(name: str, *, package: str) -> Path:
    """Return a program: the installed one, or that of a package which is only unpacked.

    The installation of some packages starts their services.
    """
    if installed_program := shutil.which(name):
        return Path(installed_program)
    folder = config.cache() / "debian" / package
    found = folder / "usr/bin" / name
    with proc.lock(config.cache() / "locks" / f"debian-{package}"):
        if not found.exists():
            fix = "sudo apt-get update, or make a package mirror reachable"
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                options = ("--quiet", "-o", "APT::Sandbox::User=root")
                proc.run("apt-get", "download", *options, package, cwd=Path(scratch), fix=fix)
                (archive,) = Path(scratch).glob("*.deb")
                proc.run("dpkg-deb", "--extract", archive, folder)
    return found


def add(packages: list[str], why: str) -> None:
    with proc.timed(f"installing Debian packages for {why}: {' '.join(packages)} (about 30 s, once)"):
        fix = (
            "see the output of apt-get above; if no package mirror is reachable, install the packages by hand"
        )
        # A machine that has just been started may be busy with its own updates.
        patience = ("--quiet", "-o", f"DPkg::Lock::Timeout={PATIENCE_S}")
        proc.run("apt-get", "update", *patience, fix=fix)
        proc.run(
            "apt-get", "install", "--yes", *patience, "--no-install-recommends", *packages,
            env={"DEBIAN_FRONTEND": "noninteractive"}, fix=fix,
        )  # fmt: skip


def installed(package: str) -> bool:
    return proc.works("sh", "-c", 'dpkg-query -W -f "\\${Status}" "$0" | grep -q "ok installed"', package)


@cache
def mirror() -> str:
    """The mirror that this machine's own apt uses for Debian's main archive."""
    lines = proc.run(
        "apt-get", "indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI)", "Created-By: Packages"
    )
    found = pick_mirror(lines.splitlines())
    if found is None:
        raise ClusterError(
            "apt on this machine has no package index of Debian's main archive", fix="sudo apt-get update"
        )
    return found


def pick_mirror(lines: list[str]) -> str | None:
    """The URI of the first line "origin codename uri" of a Debian release: no update suite or third party."""
    for line in lines:
        origin, _, rest = line.partition(" ")
        codename, _, uri = rest.partition(" ")
        if origin == "Debian" and "-" not in codename:
            return uri
    return None
