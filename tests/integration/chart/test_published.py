"""A release in a registry on this machine: what was pushed, and what is beside it."""

from __future__ import annotations

import io
import json
import tarfile
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import engine, proc, rootfs, tools
from tests.integration.chart.conftest import Helm
from tests.integration.controlplane import ControlPlane
from tests.release.__main__ import Source, release
from tests.support.kubectl import Kubectl
from tests.support.registry import serving

# One worker makes the release, for all tests of this file.
pytestmark = pytest.mark.xdist_group("published")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
STATUS = """\
Package: libc6
Status: install ok installed
Version: 2.36-9

Package: removed
Status: deinstall ok config-files
Version: 1
"""
# The files of an image that name packages and licences.
CONTENT = {
    "var/lib/dpkg/status": STATUS,
    "usr/share/doc/libc6/copyright": "Files: *\nLicense: LGPL-2.1\n\nLicense: GFDL-1.3\n text\n",
    "opt/dtj/lib/kopf-1.dist-info/METADATA": "Name: kopf\nVersion: 1.45\nLicense-Expression: MIT\n\nText",
}


@dataclass(frozen=True)
class Released:
    """A finished release: the registry and the path in it, and the folder of its files."""

    to: str
    folder: Path
    crane: Callable[..., str]

    @property
    def references(self) -> list[str]:
        """The lines of images.txt: operator, trainer, chart."""
        return (self.folder / "images.txt").read_text().splitlines()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return host and port of an empty registry on this machine."""
    with serving(tmp_path_factory.mktemp("registry")) as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return images of a few bytes in the container engine, in place of the real ones; one is for arm64.

    The engine gives images of the same content one id and loses all names of it if one is removed while
    another is added, so each has content of its own.
    """
    runtime = engine.find()
    folder = tmp_path_factory.mktemp("images")
    names = {
        role: f"localhost/dtj-stand-in-{role}:{uuid.uuid4().hex}" for role in ("operator", "trainer", "arm64")
    }
    for role, name in names.items():
        archive = folder / f"{role}.tar"
        write_archive(archive, CONTENT | {"etc/image": name})
        runtime("import", *rootfs.platform(runtime, "arm64" if role == "arm64" else ""), archive, name)
    yield names
    for name in names.values():
        runtime("image", "rm", name)


def write_archive(path: Path, content: Mapping[str, str]) -> None:
    """Write a tar archive of text files; `content` maps a file's path to its text."""
    with tarfile.open(path, "w") as root:
        for name, text in content.items():
            file = tarfile.TarInfo(name)
            file.size = len(text)
            root.addfile(file, io.BytesIO(text.encode()))


@pytest.fixture(scope="module")
def released(registry: str, stand_ins: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Released:
    """Make a release."""
    key, folder = tmp_path_factory.mktemp("key") / "release.key", tmp_path_factory.mktemp("released")
    proc.run("openssl", "genpkey", "-algorithm", "ed25519", "-out", key)
    source = Source(commit=COMMIT, date="2026-01-02T03:04:05Z")
    others = {"arm64": stand_ins["arm64"]}
    named = {role: image for role, image in stand_ins.items() if role not in others}
    release(f"{registry}/dtj", source, named, folder, key, others)
    crane = tools.ensure("crane")["crane"]
    return Released(f"{registry}/dtj", folder, lambda *words: proc.run(crane, *words))


def test_images_and_chart_are_in_the_registry_under_the_digests_of_the_release(released: Released):
    names = [line.partition("@")[0] for line in released.references]
    assert names == [
        f"{released.to}/operator:0.1.0",
        f"{released.to}/trainer:0.1.0-cpu",
        f"{released.to}/charts/dtj-operator:0.1.0",
    ]
    for name, reference in zip(names, released.references, strict=True):
        assert released.crane("digest", name).strip() == reference.partition("@")[2]


def test_operator_image_has_two_architectures(released: Released):
    listed = json.loads(released.crane("manifest", released.references[0]))["manifests"]
    assert [each["platform"]["architecture"] for each in listed] == ["amd64", "arm64"]
    for each in listed:
        config = json.loads(released.crane("config", f"{released.to}/operator@{each['digest']}"))
        assert config["config"]["Labels"]["org.opencontainers.image.revision"] == COMMIT
    (trainer,) = {json.loads(released.crane("config", released.references[1]))["architecture"]}
    assert trainer == "amd64"


def test_images_name_their_commit(released: Released):
    for reference in released.references[:2]:
        labels = json.loads(released.crane("config", reference))["config"]["Labels"]
        assert labels["org.opencontainers.image.revision"] == COMMIT
        assert labels["org.opencontainers.image.created"] == "2026-01-02T03:04:05Z"


def test_chart_installs_from_the_registry_and_names_the_image_by_its_digest(
    released: Released, helm: Helm, plane: ControlPlane, kubectl: Kubectl
):
    helm(
        "install", "published", f"oci://{released.to}/charts/dtj-operator", "--version=0.1.0", "--plain-http",
        f"--namespace={kubectl.namespace}", f"--kubeconfig={plane.kubectl.kubeconfig}",
        given={"crds": {"install": False}, "fence": {"enabled": False}},
    )  # fmt: skip

    deployment = kubectl.get("deployment", "published-operator")

    assert deployment is not None
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == released.references[0].replace(":0.1.0@", "@")


def test_bill_of_materials_lists_the_packages_of_the_image_with_their_licences(released: Released):
    document = json.loads((released.folder / "operator.cdx.json").read_text())
    assert {each["purl"] for each in document["components"]} == {
        "pkg:deb/debian/libc6@2.36-9",
        "pkg:pypi/kopf@1.45",
    }
    assert (released.folder / "operator-arm64.cdx.json").exists()
    text = (released.folder / "operator.licences.txt").read_text()
    assert text == "libc6 2.36-9: GFDL-1.3, LGPL-2.1\nkopf 1.45: MIT\n"


def test_signature_covers_every_file_and_so_every_digest(released: Released, tmp_path: Path):
    folder = released.folder
    listed = {line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    unlisted = {"SHA256SUMS", "SHA256SUMS.sig", "release.pub"}
    assert listed == {path.name for path in folder.iterdir()} - unlisted
    assert len([name for name in listed if name.endswith(".whl")]) == 3
    (client,) = folder.glob("dtj_client-*.whl")
    with zipfile.ZipFile(client) as wheel:
        assert f'"{released.to}/trainer:' in wheel.read("dtj_client/submission/manifest.py").decode()
    proc.run("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS", cwd=folder)

    def verified(sums: Path) -> bool:
        key = ("-pubin", "-inkey", folder / "release.pub", "-sigfile", folder / "SHA256SUMS.sig")
        return proc.works("openssl", "pkeyutl", "-verify", "-rawin", *key, "-in", sums)

    assert verified(folder / "SHA256SUMS")
    changed = tmp_path / "SHA256SUMS"
    changed.write_text((folder / "SHA256SUMS").read_text().replace("0", "1", 1))
    assert not verified(changed)
