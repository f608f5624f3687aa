"""Objects of an object store, by URL (`s3://bucket/run/step-120`): the part of pathlib that checkpoints need.

fsspec finds the library for the protocol: s3fs for s3://, gcsfs for gs://. Each of them raises errors of its
own; here all become OSError, so that callers treat a store like a volume: what is missing has errno ENOENT,
and everything else may be temporary.
"""

import contextlib
import errno
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from dtj.checkpoint import answers
from dtj.errors import RecipeError

# A request reads at least as much, since zipfile and torch.load ask for a few bytes at a time.
_READ_AHEAD = 8 * 2**20


@dataclass(frozen=True)
class ObjectPath:
    """The name of an object, or of all objects below it; `url` does not end in a slash."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "ObjectPath":
        return ObjectPath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """What follows the last slash."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> "ObjectPath":
        """What precedes the last slash."""
        return ObjectPath(self.url.rpartition("/")[0])

    def iterdir(self) -> Iterator["ObjectPath"]:
        """Objects and common prefixes one level below; FileNotFoundError if there are none."""
        with self.translated():
            system, path = _system(self.url)
            found = [each.rstrip("/") for each in system.ls(path, detail=False)]
        yield from (self / each.rpartition("/")[2] for each in found if each != path)

    def exists(self) -> bool:
        """There is an object of this name, or one below it."""
        with self.translated():
            system, path = _system(self.url)
            return bool(system.exists(path))

    def read_bytes(self) -> bytes:
        """The content of the object."""
        with self.translated():
            system, path = _system(self.url)
            found: bytes = system.cat_file(path)
            return found

    def write_bytes(self, data: bytes) -> None:
        """Put the object with one request: other clients see the old content, or the new."""
        with self.translated():
            system, path = _system(self.url)
            system.pipe_file(path, data)

    def remove(self) -> None:
        """Delete the object and all below it; no error if there are none."""
        with self.translated(), contextlib.suppress(FileNotFoundError):
            system, path = _system(self.url)
            system.rm(path, recursive=True)

    def rename(self, target: "ObjectPath") -> None:
        """Copy the object, then delete it."""
        with self.translated():
            system, path = _system(self.url)
            system.mv(path, _system(target.url)[1])

    @contextlib.contextmanager
    def reading(self) -> Iterator[io.BufferedIOBase]:
        """The object as a file; requests only the ranges that are read."""
        ranges = _Ranges(self)
        try:
            with io.BufferedReader(ranges, _READ_AHEAD) as file:
                yield file
        except Exception as error:
            if ranges.error is None:
                raise
            raise ranges.error from error  # zipfile and torch.load hide it behind errors of their own

    @contextlib.contextmanager
    def writing(self) -> Iterator["_Upload"]:
        """A file whose content becomes the object, in several requests if large; none after an error."""
        upload = _Upload(self)
        try:
            yield upload
        except BaseException:
            upload.discard()
            raise
        upload.close()

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Within the block, which is a request, every error of the library is an OSError."""
        try:
            with answers.awaited(self):
                yield
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url) from error
        except NotImplementedError as error:
            raise OSError(errno.EROFS, "objects of this kind cannot be written", self.url) from error
        except RecipeError:
            raise
        except Exception as error:  # each library has its own
            cause = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
            raise OSError(getattr(error, "errno", None) or errno.EIO, cause, self.url) from error


Location: TypeAlias = Path | ObjectPath


def locate(text: str) -> Location:
    """The path or URL; RecipeError if it is a URL that cannot be used here."""
    protocol, is_url, rest = text.partition("://")
    if not is_url:
        return Path(text)
    if protocol in {"file", "local"}:
        return Path(rest)
    path = ObjectPath(text.rstrip("/"))
    if "::" in text or not rest.strip("/"):
        raise RecipeError(
            f"{text} does not name a folder for checkpoints", fix="for example s3://bucket/path/of/the/run"
        )
    _system(path.url)
    return path


def _system(url: str) -> tuple[Any, str]:
    """The file system of fsspec for the protocol, and the path without it. fsspec keeps these systems."""
    from fsspec.core import url_to_fs  # noqa: PLC0415 - only object stores need it

    try:
        # Without the cache of listings: other processes write, too.
        system, path = url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise RecipeError(
            f"{url} needs a package that is not installed ({error})",
            fix=_how_to_install(url.partition("://")[0]),
        ) from error
    except ValueError as error:
        raise RecipeError(
            f"{url} cannot hold checkpoints: {error}",
            fix="use a folder, or a URL that fsspec knows, such as s3:// (pip install s3fs), gs:// (gcsfs) "
            "or az:// (adlfs)",
        ) from error
    return system, path.rstrip("/")


def _how_to_install(protocol: str) -> str:
    """The package that fsspec imports for a protocol, also for its other names: gcs, abfs, s3a."""
    from fsspec.registry import known_implementations  # noqa: PLC0415

    package = known_implementations[protocol]["class"].partition(".")[0]
    if package == "fsspec":  # which has the class, but imports a package that only its message names
        return "install what is missing in the image"
    return f"pip install {package}"


class _Ranges(io.RawIOBase):
    """Reads an object by ranges. Not fsspec's own file, whose methods raise the library's errors.

    error  of the store, once there was one
    """

    def __init__(self, path: ObjectPath) -> None:
        super().__init__()
        self.error: OSError | None = None
        self._path = path
        self._at = 0
        with path.translated():
            self._system, self._name = _system(path.url)
            self._size = int(self._system.size(self._name))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        try:
            with self._path.translated():
                data = self._system.cat_file(self._name, start=self._at, end=end)
        except OSError as error:
            self.error = error
            raise
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Upload:
    """The part of a file's interface that torch.save and torch.distributed.checkpoint write with."""

    def __init__(self, path: ObjectPath) -> None:
        self._path = path
        with path.translated():
            system, name = _system(path.url)
            self._file = system.open(name, "wb")

    def write(self, data: Any) -> int:
        with self._path.translated():
            self._file.write(data)
        return memoryview(data).nbytes

    def tell(self) -> int:
        return int(self._file.tell())

    def flush(self) -> None:
        """Nothing: a store sees whole objects only."""

    def close(self) -> None:
        with self._path.translated():
            self._file.close()

    def discard(self) -> None:
        """End without an object; parts that a store has received are deleted as far as it answers."""
        with contextlib.suppress(Exception):
            self._file.discard()
        with contextlib.suppress(AttributeError):
            self._file.closed = True  # else its destructor would complete the upload
