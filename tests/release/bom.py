"""Says what is in an image: every Debian and Python package, with its licences.

The packages are read from the image itself; cyclonedx_document.py writes the document, with CycloneDX's
own library.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tarfile
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

from tests.cluster import config, proc
from tests.release import environment

READ = re.compile(r"var/lib/dpkg/status|usr/share/doc/[^/]+/copyright|.+\.dist-info/METADATA")
PROGRAM = Path(__file__).with_name("cyclonedx_document.py")


@dataclasses.dataclass(frozen=True, order=True)
class Package:
    """A package in an image.

    kind      "deb" or "pypi", as in package URLs
    licences  names or SPDX expressions; empty if its files name none
    """

    kind: str
    name: str
    version: str
    licences: tuple[str, ...]


def write(archived: Path, folder: Path, name: str, version: str) -> None:
    """Write the bill of materials of an image (CycloneDX, JSON), and a table of its licences."""
    found = packages(files_of(archived))
    given = {"name": name, "version": version, "packages": [dataclasses.asdict(each) for each in found]}
    document = proc.run(environment.python(), "-P", PROGRAM, stdin=json.dumps(given), cwd=config.ROOT)
    (folder / f"{name}.cdx.json").write_text(document)
    lines = (f"{each.name} {each.version}: {', '.join(each.licences) or 'unknown'}\n" for each in found)
    (folder / f"{name}.licences.txt").write_text("".join(lines))


def files_of(archived: Path) -> dict[str, str]:
    """Return the files that name packages and licences: path -> text.

    archived  an image as `docker save` writes it
    """
    found: dict[str, str] = {}
    with tarfile.open(archived) as image:
        manifest = image.extractfile("manifest.json")
        assert manifest is not None
        for layer in json.load(manifest)[0]["Layers"]:
            with tarfile.open(fileobj=image.extractfile(layer)) as members:
                for member in members:
                    path = PurePosixPath(member.name)
                    if path.name.startswith(".wh."):  # the layer removes this file or folder
                        removed = str(path.with_name(path.name.removeprefix(".wh.")))
                        found = {each: text for each, text in found.items() if not within(each, removed)}
                    elif member.isfile() and READ.fullmatch(str(path)):
                        content = members.extractfile(member)
                        assert content is not None
                        found[str(path)] = content.read().decode(errors="replace")
    return found


def within(path: str, removed: str) -> bool:
    return path == removed or path.startswith(f"{removed}/")


def packages(files: dict[str, str]) -> list[Package]:
    """Return the packages that these files name, sorted."""
    found = set(debian(files))
    for path, text in files.items():
        if path.endswith(".dist-info/METADATA"):
            fields = HeaderParser().parsestr(text)
            found.add(Package("pypi", fields["Name"], fields["Version"], python_licences(fields)))
    return sorted(found)


def debian(files: dict[str, str]) -> Iterator[Package]:
    for paragraph in files.get("var/lib/dpkg/status", "").split("\n\n"):
        fields = HeaderParser().parsestr(paragraph.lstrip())
        if fields["Status"] == "install ok installed":
            name = fields["Package"]
            licences = re.findall(
                r"^License: *(\S.*)$", files.get(f"usr/share/doc/{name}/copyright", ""), re.MULTILINE
            )
            yield Package("deb", name, fields["Version"], tuple(sorted(set(licences))))


def python_licences(fields: Message) -> tuple[str, ...]:
    """Return the licences in the metadata of a distribution; the newest field that it has wins."""
    classified = [
        each.rpartition(" :: ")[2]
        for each in fields.get_all("Classifier", [])
        if each.startswith("License :: ") and each != "License :: OSI Approved"
    ]
    if expression := fields["License-Expression"]:
        return (expression,)
    named = (fields["License"] or "").strip().splitlines()[:1]
    return tuple(sorted(set(classified))) or tuple(named)
