"""The images contain the versions with which the tests run."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml

from dtj_operator import VERSION
from tests.cluster import images
from tests.cluster.errors import ClusterError
from tests.release import files

ROOT = Path(__file__).parents[3]
DOCKERFILES = sorted((ROOT / "images").rglob("Dockerfile*"))


def pins(lock: Path) -> dict[str, str]:
    """Return the version of each package in a lock file."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", lock.read_text(), re.MULTILINE))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_base_image_is_pinned_by_tag_and_digest(dockerfile: Path):
    assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", images.default_base(dockerfile.read_text()))


def test_build_on_the_public_base_is_the_cuda_trainer():
    public, own = images.candidates("trainer")
    assert images.public_names("trainer", own) == ["ghcr.io/dtj-dev/trainer:0.1.0-cpu"]
    assert "ghcr.io/dtj-dev/trainer:0.1.0" in images.public_names("trainer", public)


def test_client_of_a_release_names_the_images_of_its_registry(tmp_path: Path):
    module = tmp_path / "manifest.py"
    module.write_text((ROOT / "client/src/dtj_client/submission/manifest.py").read_text())

    files.name_images(module, "registry.example.com/dtj")

    made = runpy.run_path(str(module))
    assert made["CPU_IMAGE"] == "registry.example.com/dtj/trainer:0.1.0-cpu"
    assert made["GPU_IMAGE"] == "registry.example.com/dtj/trainer:0.1.0"
    with pytest.raises(ClusterError, match="names no image"):
        files.name_images(module, "registry.example.com/dtj")


def test_operator_image_has_the_tested_versions():
    image = pins(ROOT / "images/operator/requirements.txt")
    tested = pins(ROOT / "requirements/dev.txt")
    assert "kopf" in image
    assert {name: version for name, version in image.items() if tested.get(name) != version} == {}


def test_operator_reports_the_version_of_its_distribution_and_chart():
    distribution = tomllib.loads((ROOT / "operator/pyproject.toml").read_text())
    chart = yaml.safe_load((ROOT / "charts/dtj-operator/Chart.yaml").read_text())
    assert distribution["project"]["version"] == chart["appVersion"] == VERSION


def test_operator_image_starts_without_a_shell_and_not_as_root():
    text = (ROOT / "images/operator/Dockerfile").read_text()
    assert re.search(r"^USER 65532:65532$", text, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["python", "-P", "-m", "dtj_operator"\]$', text, re.MULTILINE)


def test_list_of_images_for_a_cluster_without_internet_is_complete():
    chart = ROOT / "charts/dtj-operator"
    values, described = (yaml.safe_load((chart / name).read_text()) for name in ("values.yaml", "Chart.yaml"))
    used = {f"{values['image']['repository']}:{described['appVersion']}"}
    for example in sorted((ROOT / "examples").glob("*.yaml")):
        used.update(re.findall(r"image: (ghcr\.io/\S+)", example.read_text()))
    page = (chart / "README.md").read_text()
    listed = page.partition("pulls these images")[2].partition("To copy them")[0]
    assert set(re.findall(r"`(ghcr\.io/[^`]+)`", listed)) == used
