"""Builds base images from Debian packages, for machines that cannot reach an image registry.

A folder describes an image: packages.txt lists the packages, exclude.txt (optional) the paths to leave out,
files/ (optional) the files to add; customize.sh (optional) runs at the end. mmdebstrap resolves and unpacks
with the machine's own apt and its mirror. The result goes straight into the engine's storage, under a name
that changes with the description.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import config, debian, proc
from tests.cluster.engine import Engine
from tests.cluster.errors import ClusterError

EXCLUDE_EVERYWHERE = config.ROOT / "images" / "base" / "exclude.txt"
# The indexes of a frozen mirror have expired; their signatures are still checked.
APT_OPTIONS = 'Acquire::Check-Valid-Until "false"'
DOWNLOADED = "var/cache/apt/archives/*.deb"
DOCUMENTATION = "/usr/share/doc/*"  # excluded but for the licences in it
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True)
class Rootfs:
    """A base image to build.

    folder        the description
    suite         Debian's release
    variant       mmdebstrap's starting set: "minbase" has apt, "essential" only what dpkg itself needs
    architecture  another one than this machine's, such as "arm64": its packages are unpacked, but not
                  configured, because their programs do not run here
    seconds       about how long the build takes
    gib           its size in the engine's storage
    """

    folder: Path
    suite: str
    variant: str = "minbase"
    architecture: str = ""
    seconds: int
    gib: float

    @property
    def image(self) -> str:
        files = [EXCLUDE_EVERYWHERE, *sorted(p for p in self.folder.rglob("*") if p.is_file())]
        key = config.key(
            *files, self.suite, self.variant, *([self.architecture] if self.architecture else [])
        )
        return f"localhost/dtj-base-{self.folder.name}:{key}"


def ensure(engine: Engine, rootfs: Rootfs) -> str:
    """Build the image unless the engine has it; return its name."""
    image = rootfs.image
    with proc.lock(config.cache() / "locks" / image.rpartition("/")[2].replace(":", "-")):
        if engine.image_id(image) is None:
            build(engine, rootfs)
    return image


def build(engine: Engine, rootfs: Rootfs) -> None:
    name = rootfs.folder.name
    if os.geteuid() != 0:
        raise ClusterError(
            f"the base image of {name} cannot be pulled, and building it from Debian packages needs root",
            fix="give the container engine access to an image registry, or run as root on Debian",
        )
    debian.install("mmdebstrap", why="base images")
    proc.need_disk(Path("/var"), rootfs.gib, what=f"the base image {name}")
    where = f"Debian {rootfs.suite} packages{rootfs.architecture and f' for {rootfs.architecture}'}"
    step = f"base image {name} from {where} (about {rootfs.seconds} s, once)"
    with proc.timed(step), complete_or_absent(engine, rootfs.image):
        proc.pipe(
            mmdebstrap(rootfs, debian.mirror()),
            [
                engine.name,
                "import",
                *platform(engine, rootfs.architecture),
                "--change",
                f"ENV PATH={PATH}",
                "--change",
                "ENV LANG=C.UTF-8",
                "-",
                rootfs.image,
            ],
            env=engine.env,
        )


def platform(engine: Engine, architecture: str) -> list[str]:
    """Flags of `import` for an architecture; "" is this machine's."""
    if not architecture:
        return []
    return [f"--arch={architecture}" if engine.name == "podman" else f"--platform=linux/{architecture}"]


@contextlib.contextmanager
def complete_or_absent(engine: Engine, image: str) -> Iterator[None]:
    """Remove an image if its build fails: the engine also imports an archive that ends too early."""
    try:
        yield
    except BaseException:
        engine.works("image", "rm", image)
        raise


def mmdebstrap(rootfs: Rootfs, mirror: str) -> list[str]:
    """The command that writes the root file system to its stdout as a tar archive."""
    packages = lines(rootfs.folder / "packages.txt")
    excluded = lines(EXCLUDE_EVERYWHERE) + lines(rootfs.folder / "exclude.txt")
    added, customize = rootfs.folder / "files", rootfs.folder / "customize.sh"
    return [
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--format=tar",
        *variant(rootfs, excluded),
        f"--aptopt={APT_OPTIONS}",
        f"--include={','.join(packages)}",
        # Its package only checks that /bin is a link to /usr/bin, so the links must come first.
        *(["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"] if "usr-is-merged" in packages else []),
        *(f"--dpkgopt=path-exclude={path}" for path in excluded),
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",  # keep the licences
        *([f"--customize-hook=copy-in {' '.join(map(str, added.iterdir()))} /"] if added.is_dir() else []),
        *([f"--customize-hook={customize}"] if customize.exists() else []),
        rootfs.suite,
        "-",
        mirror,
    ]


def variant(rootfs: Rootfs, excluded: Sequence[str]) -> list[str]:
    """Flags for the set of packages, and for those of another architecture what dpkg would do."""
    if not rootfs.architecture:
        return [f"--variant={rootfs.variant}"]
    described = 'dpkg-deb --field "$deb"; printf "Status: install ok installed\\n\\n"'
    removed = " ".join(path.lstrip("/") for path in excluded if path != DOCUMENTATION)
    return [
        "--variant=extract",
        f"--architectures={rootfs.architecture}",
        # Bills of materials read this file.
        f'--extract-hook=cd "$1"; for deb in {DOWNLOADED}; do {described}; done >var/lib/dpkg/status',
        f'--customize-hook=cd "$1"; rm -rf {removed}',
        f'--customize-hook=find "$1{DOCUMENTATION.removesuffix("/*")}" ! -type d ! -name copyright -delete',
    ]


def lines(file: Path) -> list[str]:
    """The entries of a list file without its comments; [] if there is no such file."""
    if not file.exists():
        return []
    entries = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return [entry for entry in entries if entry]
