"""Debian packages and the mirror they come from; who may not install them is told their names."""

import os
import shutil
from functools import cache

from tests.cluster import config, proc
from tests.cluster.errors import ClusterError

PATIENCE_S = 600  # with whoever else installs packages


def can_install() -> bool:
    """Whether we may add Debian packages to this machine."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(*packages: str, why: str) -> None:
    """Add packages to this machine, those that it does not have yet. Safe to call from several processes."""
    if all(map(installed, packages)):
        return
    names = " ".join(package for package in packages if not installed(package))
    if not can_install():
        raise ClusterError(f"{why} needs Debian's {names}", fix=f"sudo apt-get install {names}")
    with proc.lock(config.cache() / "locks" / "apt"):
        # Another process may have done it while we waited.
        missing = [package for package in packages if not installed(package)]
        if missing:
            add(missing, why)


def add(packages: list[str], why: str) -> None:
    with proc.timed(f"installing Debian's {' '.join(packages)} for {why} (about 30 s, once)"):
        fix = "see what apt-get says above; without a package mirror, install them by other means"
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
            "apt on this machine has no index of Debian's main archive", fix="sudo apt-get update"
        )
    return found


def pick_mirror(lines: list[str]) -> str | None:
    """Of lines "origin codename uri", the first of a release of Debian: no update suite, no third party."""
    for line in lines:
        origin, _, rest = line.partition(" ")
        codename, _, uri = rest.partition(" ")
        if origin == "Debian" and "-" not in codename:
            return uri
    return None
