"""Names and keys: stable where nothing changed, different where something did."""

from pathlib import Path

import pytest

from tests.cluster import config


def test_two_checkouts_have_two_clusters(tmp_path: Path):
    assert config.cluster_name(tmp_path / "one") != config.cluster_name(tmp_path / "two")


def test_a_checkout_has_one_cluster_however_its_path_is_written(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert config.cluster_name(tmp_path / "link") == config.cluster_name(tmp_path / "real")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_text("1")
    (tmp_path / "sub" / "b").write_text("2")
    return tmp_path


def test_key_of_a_folder_changes_with_contents_and_with_names(folder: Path):
    before = config.key(folder)
    (folder / "a").write_text("3")
    changed = config.key(folder)
    (folder / "a").rename(folder / "c")
    assert len({before, changed, config.key(folder)}) == 3


def test_key_of_a_folder_does_not_depend_on_where_it_lies_or_on_bytecode(folder: Path, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    before = config.key(folder)
    folder.rename(elsewhere)
    (elsewhere / "__pycache__").mkdir()
    (elsewhere / "__pycache__" / "a.pyc").write_text("compiled")
    assert config.key(elsewhere) == before


def test_key_keeps_neighbouring_parts_apart():
    assert config.key("ab", "c") != config.key("a", "bc")


def test_versions_come_from_the_lock_files():
    assert config.version_of("kubernetes", "k8s.io/kubernetes") == config.kubernetes_version()
    with pytest.raises(LookupError, match=r"does not require example\.com/absent"):
        config.version_of("kubernetes", "example.com/absent")
