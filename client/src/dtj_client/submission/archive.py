"""Packs the folder of a program into an archive that fits into a ConfigMap."""

import base64
import gzip
import io
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtj_client.errors import ClientError
from dtj_client.progress import Progress, ignore

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LIMIT = 900 * 1024  # bytes of an archive in a ConfigMap; the API server accepts objects of about 1 MiB
CLAIM_LIMIT = 200 << 20  # bytes of an archive in a claim; it is made in memory, and code is smaller
_LISTED = 64  # files between two signs of progress
IGNORE_FILES = (".gitignore", ".dtjignore")
NEVER = (
    *(".git", ".mypy_cache/", ".ruff_cache/", ".venv/", "venv/", ".pixi/", "node_modules/", "__pycache__/"),
    "*.pyc",
)
_OF_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")  # what only the folder of an environment has
# What a user does not miss: hidden files, caches and what builds write. Ignored ones are not named.
NOISE = (*NEVER, ".*", "*.egg-info/", "build/", "dist/", "htmlcov/", "*.py[co]")
# Everybody who may read ConfigMaps in the namespace could read these.
SECRETS = (
    *(".env", ".env.*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", ".ssh/"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc", ".npmrc", ".pypirc", ".git-credentials"),
    *(".docker/", ".vault-token", "*kubeconfig*", ".kube/", ".aws/", ".azure/", ".boto", ".s3cfg"),
    *(".config/gcloud/", "*credentials*.json", "*service-account*.json", "*service_account*.json"),
    *("client_secret*.json", "rclone.conf", "kaggle.json"),
    *(".huggingface/", ".cache/huggingface/token", ".streamlit/secrets.toml"),
)


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A tar.gz of a folder.

    files    paths inside the folder
    secrets  paths that look like secrets and were left out
    links    paths of symbolic links, which were left out too
    ignored  paths that .gitignore matches, other than caches; a folder, with a slash behind it, once
    """

    data: bytes
    files: tuple[str, ...]
    secrets: tuple[str, ...]
    links: tuple[str, ...]
    ignored: tuple[str, ...] = ()

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()


class _TooLargeError(Exception):
    """The archive has more bytes than may go along."""


class _Bounded(io.BytesIO):
    """Bytes in memory, at most `limit` of them: a data set in the folder must not fill the machine."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit, self._is_full = limit, False

    def write(self, data: Any, /) -> int:
        if self._is_full:  # what gzip and tar write when they are closed
            return len(memoryview(data))
        written = super().write(data)
        self._is_full = self.tell() > self._limit
        if self._is_full:
            raise _TooLargeError
        return written


def pack(
    folder: Path | None,
    extra: Mapping[str, str] | None = None,
    *,
    has_claim: bool = False,
    progress: Progress = ignore,
) -> Archive:
    """Pack what .gitignore and .dtjignore leave of a folder. Raises ClientError if that is not possible.

    extra      further files: text by path; they replace files of the folder
    has_claim  the archive may be larger than a ConfigMap, because it can lie in a claim
    progress   is called with the number of packed files, and of all; while they are listed these are the same

    The same files give the same bytes: no times, no owners.
    """
    extra = extra or {}
    ignored: list[str] = []
    found: list[str] = []
    try:
        for path in () if folder is None else _files(folder, ignored):
            if path not in extra:
                found.append(path)
            if not len(found) % _LISTED:
                progress(len(found), len(found))
    except OSError as error:  # an ignore file, or a folder that shows the names of its files only
        fix = "make it readable, or list its folder in a .dtjignore above it"
        raise ClientError(f"cannot read {error.filename}: {error.strerror}", fix) from error
    folder, secret = folder or Path(), _spec(SECRETS)
    hidden = tuple(path for path in found if secret.match_file(path.lower()))
    shown = [path for path in found if path not in hidden]
    links = tuple(path for path in shown if (folder / path).is_symlink())
    files = tuple(path for path in shown if path not in links)
    try:
        data = _packed(folder, files, extra, CLAIM_LIMIT if has_claim else LIMIT, progress)
    except _TooLargeError:
        sizes = sorted((_bytes_of(folder / path), path) for path in files)[:-4:-1]
        largest = ", ".join(f"{path} with {size >> 10} KiB" for size, path in sizes)
        raise ClientError(
            f"the archive of {folder.resolve()} has more than the {_size(has_claim)} that fit into "
            f"{'a claim' if has_claim else 'a ConfigMap'}",
            f"list what is not needed in .dtjignore (the largest: {largest})"
            f"{'' if has_claim else ', name a claim that all pods can mount with --code-claim'}, or build "
            "an image with the code, and name it with --image and --no-code",
        ) from None
    except OSError as error:
        raise _unreadable(error, f"a file in {folder.resolve()}") from error
    noise = _spec(NOISE)
    missed = tuple(path for path in ignored if path not in extra and not noise.match_file(path))
    return Archive(data=data, files=(*files, *extra), secrets=hidden, links=links, ignored=missed)


def _bytes_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # it is gone: a program may write here at this moment
        return 0


def _unreadable(error: OSError, place: str = "") -> ClientError:
    return ClientError(
        f"cannot read {error.filename or place}: {error.strerror or error}",
        "list it in .dtjignore, if the program does not need it",
    )


def _size(has_claim: bool) -> str:
    return f"{CLAIM_LIMIT >> 20} MiB" if has_claim else f"{LIMIT >> 10} KiB"


def _packed(
    folder: Path, files: Sequence[str], extra: Mapping[str, str], limit: int, progress: Progress
) -> bytes:
    """The bytes of the archive. Raises _TooLargeError as soon as there are too many."""
    buffer = _Bounded(limit)
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for number, path in enumerate(files, 1):
            tar.add(folder / path, arcname=path, recursive=False, filter=_anonymous)
            progress(number, len(files))
        for path, text in extra.items():
            member = tarfile.TarInfo(path)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _spec(lines: Sequence[str]) -> "GitIgnoreSpec":
    """The patterns of these lines; as for git, a line that is none, such as a single slash, has no effect."""
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - 30 ms that kubectl dtj --help need not take

    def is_pattern(line: str) -> bool:
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            return False
        return True

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:
        return GitIgnoreSpec.from_lines([line if is_pattern(line) else "" for line in lines])


def _patterns(file: Path) -> list[str]:
    return file.read_text("utf-8-sig", errors="replace").splitlines() if file.is_file() else []


def _files(folder: Path, left: list[str]) -> Iterator[str]:
    """Yield files and links, without looking into ignored folders or following links.

    As for git, an ignore file is about the folder that it is in, and all below, and the nearest one decides.

    left  gets what .gitignore matches; who writes a .dtjignore knows what stays behind
    """
    # The number is that of the first pattern of .dtjignore.
    rules: dict[Path, tuple[GitIgnoreSpec, int]] = {}

    def add(here: Path, always: Sequence[str] = ()) -> None:
        git, own = (_patterns(here / name) for name in IGNORE_FILES)
        if always or git or own:
            rules[here] = _spec((*always, *git, *own)), len(always) + len(git)

    def ignored(path: Path, end: str = "") -> bool:
        for above in filter(rules.__contains__, path.parents):  # the nearest first
            spec, first = rules[above]
            found = spec.check_file(f"{path.relative_to(above).as_posix()}{end}")
            if found.include is None:
                continue
            if found.include and found.index is not None and found.index < first:
                left.append(f"{path.relative_to(folder).as_posix()}{end}")
            return found.include
        return False

    def refuse(error: OSError) -> None:
        raise _unreadable(error) from error

    add(folder, NEVER)
    for root, folders, files in os.walk(folder, onerror=refuse):
        here = Path(root)
        if here != folder:
            add(here)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(
            name
            for name in folders
            if not (
                any((here / name / each).exists() for each in _OF_ENVIRONMENTS) or ignored(here / name, "/")
            )
        )
        for path in (here / name for name in sorted((*files, *links))):
            if (path.is_symlink() or path.is_file()) and not ignored(path):
                yield path.relative_to(folder).as_posix()


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member
