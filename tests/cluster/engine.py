"""The container engine: which one works here, and how to call it.

A `docker` on PATH is not enough: its daemon must answer. If neither engine works, podman is installed,
provided that we have the rights. Settings that podman needs on this machine go into a file of our own, named
by CONTAINERS_CONF.
"""

import os
import platform
import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.cluster import config, debian, proc
from tests.cluster.errors import ClusterError

CAP_SYS_RESOURCE = 24
# By default podman allows a node 2,048 processes and threads, of which systemd allows containerd 15 %: fork
# then fails for one of the first fifty pods.
NO_PIDS_LIMIT = "[containers]\npids_limit = 0\n"
INSTALL_HINT = (
    "install Docker (and start it), or podman; as root on Debian or Ubuntu this tool installs podman itself"
)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A working docker or podman."""

    name: str
    env: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, *args: str | Path, step: str = "", stdin: str | None = None, fix: str = "") -> str:
        """Run `docker ...` or `podman ...` and return its stdout."""
        return proc.run(self.name, *args, step=step, stdin=stdin, env=self.env, fix=fix)

    @property
    def architecture(self) -> str:
        """The architecture of this machine, as images name it: "amd64", "arm64"."""
        return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())

    def works(self, *args: str | Path, within_s: float = 20) -> bool:
        return proc.works(self.name, *args, env=self.env, within_s=within_s)

    def image_id(self, image: str) -> str | None:
        """The id of an image in the engine's storage, without "sha256:"; None if it is not there."""
        if not self.works("image", "inspect", image):
            return None
        return self("image", "inspect", "--format", "{{.Id}}", image).strip().removeprefix("sha256:")

    def can_pull(self, image: str) -> bool:
        """Whether an image is in the engine's storage or can be pulled. Slow without a registry."""
        if self.image_id(image):
            return True
        proc.say(f"pulling {image.partition('@')[0]}")
        return self.works("pull", "--quiet", image, within_s=900)


def choose(*, docker_works: bool, podman_works: bool, may_install: bool) -> str | None:
    """Prefer docker, which most people use; None if there is no engine and we may not install one."""
    if docker_works:
        return "docker"
    if podman_works or may_install:
        return "podman"
    return None


def is_there() -> bool:
    """Whether an engine is available without installing one."""
    return proc.works("docker", "ps") or shutil.which("podman") is not None


@cache
def find() -> Engine:
    """The engine of this machine; podman is installed if necessary."""
    docker_works = proc.works("docker", "ps", within_s=60)
    podman_works = not docker_works and shutil.which("podman") is not None
    name = choose(docker_works=docker_works, podman_works=podman_works, may_install=debian.can_install())
    if name is None:
        raise ClusterError("no container engine works on this machine", fix=INSTALL_HINT)
    if name == "docker":
        return Engine(name="docker", env={"KIND_EXPERIMENTAL_PROVIDER": "docker"})
    if not podman_works:
        # apt installs no recommended packages here, so those that nodes need are named.
        debian.install("podman", "netavark", "aardvark-dns", "runc", "iptables", why="a container engine")
    engine = Engine(name="podman", env={"KIND_EXPERIMENTAL_PROVIDER": "podman"} | podman_settings())
    if not engine.works("info"):
        raise ClusterError("podman is installed but `podman info` fails", fix=INSTALL_HINT)
    return engine


def podman_settings() -> dict[str, str]:
    """Environment that makes podman work on this machine; empty if its own settings do."""
    text = containers_conf(
        root=os.geteuid() == 0,
        unified_cgroups=Path("/sys/fs/cgroup/cgroup.controllers").exists(),
        may_raise_limits=has_capability(Path("/proc/self/status").read_text(), CAP_SYS_RESOURCE),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    )
    path = config.cache() / "containers" / f"{config.key(text or NO_PIDS_LIMIT)}.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or NO_PIDS_LIMIT)
    # CONTAINERS_CONF takes the place of the machine's own settings; the other one adds to them.
    return {"CONTAINERS_CONF" if text else "CONTAINERS_CONF_OVERRIDE": str(path)}


def containers_conf(
    *, root: bool, unified_cgroups: bool, may_raise_limits: bool, open_files: int
) -> str | None:
    """The settings that podman needs on machines that are themselves containers or run cgroup v1; else None.

    open_files  our hard limit of open files; the nodes get it if we may not raise it
    """
    if not root or (unified_cgroups and may_raise_limits):
        return None
    lines = [NO_PIDS_LIMIT.rstrip()]
    if not may_raise_limits:  # podman asks for 1048576 of each and fails
        lines += [f'default_ulimits = ["nofile={open_files}:{open_files}", "nproc=32768:32768"]']
    if not unified_cgroups:  # crun refuses a hybrid hierarchy
        lines += ["[engine]", 'runtime = "runc"']
    return "\n".join(lines) + "\n"


def has_capability(status: str, number: int) -> bool:
    """Whether a process has an effective capability, by its /proc/<pid>/status."""
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(mask, 16) >> number & 1)
