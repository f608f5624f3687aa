"""`make release`: pushes both images and the chart to a registry, and writes the files of the release."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import config, engine, images, proc
from tests.cluster.errors import ClusterError
from tests.release import bom, files, registry, signatures

CHART = config.ROOT / "charts/dtj-operator"
ARCHITECTURES = ("amd64", "arm64")  # of the operator's image; the trainer's base is for amd64 only


@dataclass(frozen=True, kw_only=True)
class Source:
    """The commit that a release is made from; `date` in RFC 3339."""

    commit: str
    date: str

    @property
    def labels(self) -> dict[str, str]:
        """Labels of an image; its title, version and licence are in the Dockerfile."""
        return {
            "org.opencontainers.image.revision": self.commit,
            "org.opencontainers.image.created": self.date,
        }


def main() -> int:
    """Make a release; return the exit status of the process."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("registry", help="registry and path, without https://")
    parser.add_argument("--key", type=Path, help="private key that signs the release")
    given = parser.parse_args()
    try:
        if given.key:
            signatures.check_key(given.key)
        source = committed()
        named = dict(zip(config.IMAGES, images.build().values(), strict=True))
        runtime = engine.find()
        others = {
            each: images.ensure_foreign(runtime, "operator", each)
            for each in ARCHITECTURES
            if each != runtime.architecture
        }
        folder = config.ROOT / "build/release"
        release(given.registry.rstrip("/"), source, named, folder, given.key, others)
    except ClusterError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"The files of the release are in {folder.relative_to(config.ROOT)}:")
    print(*sorted(path.name for path in folder.iterdir()), sep="\n")
    return 0


def committed() -> Source:
    """Return the commit that is checked out.

    Raises ClusterError if files differ from it.
    """
    changed = proc.run("git", "status", "--porcelain", cwd=config.ROOT).strip()
    if changed:
        raise ClusterError(f"these files are not committed:\n{changed}", fix="git commit, or git stash")
    commit, date = proc.run("git", "log", "-1", "--format=%H %cI", cwd=config.ROOT).split()
    return Source(commit=commit, date=date)


def release(
    to: str,
    source: Source,
    named: Mapping[str, str],
    folder: Path,
    key: Path | None,
    others: Mapping[str, str],
) -> None:
    """Push the images and the chart, and write the files of the release.

    to      registry and path
    named   operator and trainer -> the image in the container engine
    folder  of the files; it is emptied first
    key     signs the checksums; None: they are not signed
    others  architecture -> the operator's image for it
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pushed = {role: push(to, source, role, image, folder) for role, image in named.items()}
    if others:
        parts = [push(to, source, "operator", image, folder, f"-{each}") for each, image in others.items()]
        pushed["operator"] = registry.push_index([pushed["operator"], *parts])
    pushed["chart"] = registry.push_chart(CHART, to, pushed["operator"], folder)
    (folder / "images.txt").write_text("".join(f"{each.reference}\n" for each in pushed.values()))
    files.build_wheels(folder, to)
    checksums = files.write_checksums(folder)
    if key:
        signatures.sign(checksums, key)


def push(to: str, source: Source, role: str, image: str, folder: Path, suffix: str = "") -> registry.Pushed:
    """Push an image and write its bill of materials; `suffix` of its tag and of the files."""
    name, _, tag = images.public_names(role, image)[-1].rpartition(":")
    with registry.archive(engine.find(), image, source.labels, folder) as archived:
        bom.write(archived, folder, f"{role}{suffix}", tag)
        return registry.push_image(archived, f"{to}/{name.rpartition('/')[2]}", f"{tag}{suffix}")


if __name__ == "__main__":
    sys.exit(main())
