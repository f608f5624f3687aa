"""Signs the checksums of a release with a key of your own, by OpenSSL.

The checksums cover `images.txt`, which has the digests of images and chart: one signature covers all.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster import proc

KEY_FIX = "openssl genpkey -algorithm ed25519 -out release.key"


def check_key(key: Path) -> None:
    """Raise ClusterError if this is not a private key in PEM form."""
    proc.run("openssl", "pkey", "-in", key, "-noout", fix=KEY_FIX)


def sign(file: Path, key: Path) -> Path:
    """Sign a file; return the path of the signature. The public key is written beside it."""
    signature = file.with_name(f"{file.name}.sig")
    proc.run("openssl", "pkeyutl", "-sign", "-rawin", "-inkey", key, "-in", file, "-out", signature)
    proc.run("openssl", "pkey", "-in", key, "-pubout", "-out", file.with_name("release.pub"))
    return signature
