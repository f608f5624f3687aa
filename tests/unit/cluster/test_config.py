"""Names and keys change if, and only if, their inputs change."""

from pathlib import Path

import pytest

from tests.cluster import config


def test_two_checkouts_have_different_clusters(tmp_path: Path):
    assert config.cluster_name(tmp_path / "one") != config.cluster_name(tmp_path / "two")


def test_cluster_name_is_the_same_for_a_symlink_to_the_checkout(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert config.cluster_name(tmp_path / "link") == config.cluster_name(tmp_path / "real")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_text("1")
    (tmp_path / "sub" / "b").write_text("2")
    return tmp_path


def test_key_of_a_folder_changes_with_file_contents_and_names(folder: Path):
    before = config.key(folder)
    (folder / "a").write_text("3")
    changed = config.key(folder)
    (folder / "a").rename(folder / "c")
    assert len({before, changed, config.key(folder)}) == 3


def test_key_of_a_folder_depends_on_neither_its_path_nor_bytecode(folder: Path, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    before = config.key(folder)
    folder.rename(elsewhere)
    (elsewhere / "__pycache__").mkdir()
    (elsewhere / "__pycache__" / "a.pyc").write_text("compiled")
    assert config.key(elsewhere) == before


def test_key_depends_on_the_boundary_between_parts():
    assert config.key("ab", "c") != config.key("a", "bc")


def test_versions_come_from_the_lock_files():
    assert config.version_of("kubernetes", "k8s.io/kubernetes") == config.kubernetes_version()
    with pytest.raises(LookupError, match=r"does not require example\.com/absent"):
        config.version_of("kubernetes", "example.com/absent")
