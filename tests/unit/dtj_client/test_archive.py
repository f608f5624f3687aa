"""What of a folder goes along with a job."""

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dtj_client.errors import ClientError
from dtj_client.submission import archive
from dtj_client.submission.archive import pack


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def unpacked(data: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: tar.extractfile(member).read().decode() for member in tar}  # type: ignore[union-attr]


def test_archive_has_what_the_ignore_files_leave(tmp_path: Path) -> None:
    write(tmp_path, train_py="print(1)", lib__model_py="x = 1", data__big="0" * 100, note="n")
    (tmp_path / ".gitignore").write_text("data/\n")
    (tmp_path / ".dtjignore").write_text("note\n.*ignore\n")
    write(tmp_path / ".git", config="c")

    packed = pack(tmp_path)
    assert unpacked(packed.data) == {"train.py": "print(1)", "lib/model.py": "x = 1"}
    assert packed.files == ("train.py", "lib/model.py")


def test_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path, train_py="print(1)")
    first = pack(tmp_path).data
    os.utime(tmp_path / "train.py", (1, 1))
    assert pack(tmp_path).data == first


def test_ignore_files_are_read_as_git_reads_them(tmp_path: Path) -> None:
    """With the mark that editors of Windows write first, their line ends, and lines that are not patterns."""
    write(tmp_path, train_py="print(1)", data__big="0", note="n", lib__model_py="x = 1")
    (tmp_path / ".gitignore").write_bytes(b"\xef\xbb\xbfdata/\r\n/\r\nnote\r\n.gitignore\r\n")
    (tmp_path / "lib" / ".git").write_text("gitdir: ../.git/modules/lib\n")  # of a submodule

    assert pack(tmp_path).files == ("train.py", "lib/model.py")


@pytest.mark.parametrize(
    "name",
    [
        *(".env", ".env.local", ".envrc", "tls/server.key", "id_rsa", "my.kubeconfig", ".aws/credentials"),
        *(".git-credentials", ".docker/config.json", "kaggle.json", ".cache/huggingface/token", "id_ecdsa"),
        *("gcp_service_account.json", "application_default_credentials.json", "KEY.PEM", "prod.env"),
        *(".azure/msal_token_cache.json", "client_secret_1.json", "rclone.conf"),
    ],
)
def test_secrets_are_never_sent_and_are_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, train_py="print(1)")
    (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / name).write_text("secret")

    packed = pack(tmp_path)
    assert packed.secrets == (name,)
    assert list(unpacked(packed.data)) == ["train.py"]


def test_what_gitignore_keeps_here_is_known_but_not_caches(tmp_path: Path) -> None:
    write(tmp_path, train_py="1", data__raw__a_csv="1", data__raw__b_csv="1", sub__c_csv="1", sub__d_log="1")
    write(tmp_path, both="1", own="1", kept_csv="1", env__a="1")
    for folder, name in (("__pycache__", "a.pyc"), (".pytest_cache", "a"), ("env", "pyvenv.cfg")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).touch()
    (tmp_path / ".gitignore").write_text("raw/\n/\n*_csv\n.*\nboth\nenv/\n__pycache__/\n")
    (tmp_path / "sub" / ".gitignore").write_text("*_log\n")
    (tmp_path / ".dtjignore").write_text("own\nboth\n!kept_csv\n")

    packed = pack(tmp_path)
    assert packed.files == ("kept_csv", "train.py")
    assert packed.ignored == ("data/raw/", "sub/c_csv", "sub/d_log")
    assert pack(tmp_path, {"sub/c_csv": ""}).ignored == ("data/raw/", "sub/d_log")


@pytest.mark.parametrize("path", ["env/pyvenv.cfg", "env/conda-meta/history", ".pixi/envs/default/lib/a.so"])
def test_environment_of_any_name_stays(tmp_path: Path, path: str) -> None:
    write(tmp_path, train_py="print(1)")
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).touch()

    assert pack(tmp_path).files == ("train.py",)


def test_links_are_not_followed_out_of_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside, passwords="p")
    inside = tmp_path / "inside"
    write(inside, train_py="print(1)")
    (inside / "link").symlink_to(outside / "passwords")
    (inside / "folder").symlink_to(outside)
    (inside / ".env").symlink_to(outside / "passwords")
    packed = pack(inside)
    assert packed.files == ("train.py",)
    assert packed.links == ("folder", "link"), "they are named"
    assert packed.secrets == (".env",)


def test_ignore_file_of_a_subfolder_is_about_what_is_below_it(tmp_path: Path) -> None:
    write(
        tmp_path, train_py="1", keys="1", conf__keys="1", conf__deep__keys="1", conf__base="1", runs__log="1"
    )
    (tmp_path / "conf" / ".gitignore").write_bytes(b"# gr\xfc\xdfe\nkeys\n.gitignore\n")
    (tmp_path / "runs" / ".gitignore").write_text("*\n")
    write(tmp_path, a_json="{}", conf__b_json="{}", conf__deep__c_json="{}")
    (tmp_path / ".gitignore").write_text("*_json\n.gitignore\n")
    (tmp_path / "conf" / "deep" / ".gitignore").write_text("!c_json\n")

    assert set(pack(tmp_path).files) == {"train.py", "keys", "conf/base", "conf/deep/c_json"}


@pytest.mark.parametrize(
    "name",
    ["with space.txt", "ünï", "a'b\"c", "-x", "new\nline", b"\xff.bin".decode(errors="surrogateescape")],
)
def test_file_of_any_name_goes_along(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(range(256)))
    with tarfile.open(fileobj=io.BytesIO(pack(tmp_path).data)) as tar:
        (member,) = tar.getmembers()
        assert member.name == name
        assert tar.extractfile(member).read() == bytes(range(256))  # type: ignore[union-attr]


def test_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, train_py="print(1)")

    def refuse(_self: tarfile.TarFile, name: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(name))

    monkeypatch.setattr(tarfile.TarFile, "add", refuse)
    with pytest.raises(ClientError, match=r"(?s)cannot read .*train\.py: Permission denied.*\.dtjignore"):
        pack(tmp_path)


def test_folder_that_cannot_be_read_is_named_unless_it_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, train_py="print(1)", cache__a="1")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if Path(path).name == "cache":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ClientError, match=r"(?s)cannot read .*cache: Permission denied.*\.dtjignore"):
        pack(tmp_path)
    (tmp_path / ".dtjignore").write_text("cache\n.dtjignore\n")
    assert pack(tmp_path).files == ("train.py",)

    def refuse_text(path: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse_text)
    with pytest.raises(ClientError, match=r"\.dtjignore: Permission denied\n  fix: make it readable"):
        pack(tmp_path)


def test_folder_that_is_too_large_is_refused_with_the_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LIMIT", 200)
    write(tmp_path, train_py="print(1)")
    (tmp_path / "weights.bin").write_bytes(os.urandom(5000))
    with pytest.raises(
        ClientError, match=r"(?s)weights\.bin with 4 KiB, train\.py with 0 KiB\).*--code-claim.*--no-code"
    ):
        pack(tmp_path)
    assert len(pack(tmp_path, has_claim=True).data) > 5000

    monkeypatch.setattr(archive, "CLAIM_LIMIT", 200)
    with pytest.raises(ClientError, match=r"(?s)fit into a claim.*weights\.bin"):
        pack(tmp_path, has_claim=True)


def test_listing_many_files_is_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_LISTED", 2)
    write(tmp_path, **dict.fromkeys("abcde", "1"))
    seen: list[tuple[int, int]] = []
    pack(tmp_path, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(2, 2), (4, 4), (1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_file_that_is_gone_does_not_hide_that_the_folder_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a log of a program that runs there."""
    monkeypatch.setattr(archive, "LIMIT", 200)
    write(tmp_path, a_log="1")
    (tmp_path / "weights.bin").write_bytes(os.urandom(5000))
    add = tarfile.TarFile.add

    def remove_after(tar: tarfile.TarFile, name: Path, **how: Any) -> None:
        add(tar, name, **how)
        (tmp_path / "a_log").unlink(missing_ok=True)

    monkeypatch.setattr(tarfile.TarFile, "add", remove_after)
    with pytest.raises(ClientError, match=r"the largest: weights\.bin with 4 KiB"):
        pack(tmp_path)


def test_folder_with_a_data_set_fills_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is as large as 4 GiB, of which only as much is read as fits."""
    monkeypatch.setattr(archive, "LIMIT", 20_000)
    with (tmp_path / "data.bin").open("wb") as file:
        file.write(os.urandom(100_000))
        file.truncate(1 << 32)
    with pytest.raises(ClientError, match=r"more than the 19 KiB"):
        pack(tmp_path)


def test_further_files_replace_those_of_the_folder(tmp_path: Path) -> None:
    write(tmp_path, train_py="print(1)", model_py="x = 1")
    packed = pack(tmp_path, {"train.py": "print(2)"})
    assert unpacked(packed.data) == {"model.py": "x = 1", "train.py": "print(2)"}
    assert unpacked(pack(None, {"a.py": "1"}).data) == {"a.py": "1"}
