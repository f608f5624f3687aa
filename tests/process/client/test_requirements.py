"""The command of the init container that installs packages, with real pip and a folder of wheels."""

import contextlib
import hashlib
import os
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from dtj_client.submission.requirements import Requirements, install
from tests.support.ports import free_port


def wheel(folder: Path, name: str, requires: str = "") -> Path:
    """Write a wheel with one module."""
    path, info = folder / f"{name}-1-py3-none-any.whl", f"{name}-1.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n" + (
        f"Requires-Dist: {requires}\n" if requires else ""
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"NAME = {name!r}\n")
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def run(folder: Path, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the init container's command in the folder, which stands for the pod's."""
    (folder / "requirements.txt").write_text(text)
    pod: dict[str, list[dict[str, list[str]]]] = {"initContainers": [], "volumes": []}
    found = Requirements(path="requirements.txt", text=text)
    install(pod, {"volumeMounts": []}, found, code="/app")
    _, *words = pod["initContainers"][0]["command"]
    here = [str(folder / "packages") if each == "/packages" else each for each in words]
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), **variables}
    return subprocess.run(
        [sys.executable, *here], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def test_packages_are_beside_those_of_the_image_and_hashes_are_checked(tmp_path: Path) -> None:
    """The package needs torch, which no wheel in the folder is: pip has to find the image's."""
    path = wheel(tmp_path, "greeting", requires="torch")
    right = hashlib.sha256(path.read_bytes()).hexdigest()

    done = run(tmp_path, "greeting\n")
    assert done.returncode == 0, done.stderr
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "packages/site")}
    check = [sys.executable, "-c", "import greeting, click; print(greeting.NAME)"]
    assert subprocess.run(check, env=env, capture_output=True, text=True, check=True).stdout == "greeting\n"
    assert not (tmp_path / "packages/site/torch").exists()

    wrong = run(tmp_path, f"greeting==1 --hash=sha256:{right[::-1]}\n")
    assert wrong.returncode == 78, "the operator does not restart the job"
    assert "DO NOT MATCH THE HASHES" in wrong.stderr


def test_package_that_does_not_exist_is_final_unless_the_index_could_not_be_asked(tmp_path: Path) -> None:
    absent = run(tmp_path, "greeting==1\n")
    assert absent.returncode == 78
    assert "No matching distribution found for greeting==1" in absent.stderr

    nobody_listens = f"http://127.0.0.1:{free_port()}/simple"
    index = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": nobody_listens, "PIP_RETRIES": "1"}
    unasked = run(tmp_path, "greeting==1\n", **index)
    assert unasked.returncode == 1
    assert "No matching distribution found for greeting==1" in unasked.stderr
    last = unasked.stderr.splitlines()[-1]  # which the job's status shows
    assert last.startswith("the package index could not be reached")


def test_package_from_git_is_final_in_an_image_without_git(tmp_path: Path) -> None:
    done = run(tmp_path, "a @ git+https://example.com/a.git\n", PATH="/none")
    assert "Cannot find command 'git'" in done.stderr
    assert done.returncode == 78, "the operator does not restart the job"


@contextlib.contextmanager
def index(folder: Path, certificate: Path) -> Iterator[str]:
    """Serve a folder over HTTPS, with a certificate that is made here; yield its URL."""
    key = certificate.with_suffix(".key")
    words = f"-x509 -newkey rsa:2048 -nodes -subj /CN=index -keyout {key} -out {certificate}".split()
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", *words, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_index_whose_certificate_is_not_trusted_is_final_and_says_what_helps(tmp_path: Path) -> None:
    (tmp_path / "index/greeting").mkdir(parents=True)
    wheel(tmp_path / "index/greeting", "greeting")
    with index(tmp_path / "index", tmp_path / "ca.crt") as url:
        variables = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": url, "PIP_RETRIES": "1", "PIP_FIND_LINKS": ""}
        variables |= {
            "REQUESTS_CA_BUNDLE": "",
            "CURL_CA_BUNDLE": "",
        }  # of this machine; they win over PIP_CERT
        refused = run(tmp_path, "greeting\n", **variables)
        assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
        last = refused.stderr.splitlines()[-1]  # which the job's status shows
        assert last.startswith("pip does not trust the certificate")
        assert refused.returncode == 78, "the operator does not restart the job"

        for name, value in (("PIP_CERT", "ca.crt"), ("PIP_TRUSTED_HOST", "127.0.0.1")):
            assert name in last
            trusted = run(tmp_path, "greeting\n", **variables, **{name: value})
            assert trusted.returncode == 0, trusted.stderr
