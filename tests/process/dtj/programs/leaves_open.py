"""A script that closes no file, and saves an object of its own class after its last line."""

import atexit
import ctypes
import gzip
import os
import pickle
import threading
import zipfile
from pathlib import Path

OUT = Path(os.environ["OUT"])
plain = (OUT / "plain").open("w")
zipped = gzip.open(OUT / "zipped", "wt")  # noqa: SIM115 - that is the point
archive = zipfile.ZipFile(OUT / "archive", "w")
is_over = threading.Event()


class Net:
    """Pickled by its name in `__main__`."""


def save(name: str) -> None:
    (OUT / name).write_bytes(pickle.dumps(Net()))


def save_later() -> None:
    is_over.wait()
    save("net-thread")


def main() -> None:
    plain.write("one line\n")
    zipped.write("one line\n")
    archive.writestr("member", "one line\n")
    ctypes.CDLL(None).printf(b"from C\n")


atexit.register(save, "net-atexit")
threading.Thread(target=save_later).start()
main()
threading._register_atexit(is_over.set)  # type: ignore[attr-defined]  # called before threads are waited for
