"""Parsing of other programs' output and of list files."""

import pytest

from tests.cluster import debian, go, images, load, rootfs
from tests.cluster.engine import Engine
from tests.cluster.errors import ClusterError


def test_mirror_is_that_of_a_release_not_of_updates_or_third_parties():
    lines = [
        "Elsewhere stable http://elsewhere.example/",
        "Debian bookworm-security http://security.example/",
        "Debian bookworm http://main.example/debian/",
    ]
    assert debian.pick_mirror(lines) == "http://main.example/debian/"
    assert debian.pick_mirror(lines[:2]) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [("1.26.0", (1, 26, 0)), ("1.27rc1", (1, 27)), ("1.26.8 X:nodwarf5", (1, 26, 8))],
)
def test_go_versions(text, version):
    assert go.parse_version(text) == version


@pytest.mark.parametrize(
    ("package", "name"),
    [
        pytest.param("k8s.io/kubernetes/cmd/kubelet", "kubelet", id="last path element"),
        pytest.param("go.etcd.io/etcd/server/v3", "server", id="a major version is skipped"),
        pytest.param(".", "coredns", id="a module's own main"),
    ],
)
def test_name_of_the_file_that_go_writes(package, name):
    assert go.output_name("coredns", package) == name


def test_inputs_of_an_image_are_what_its_dockerfile_copies_from_the_checkout():
    text = "FROM a AS b\nCOPY --chown=1:1 x y /to/\nCOPY --from=b /built /here\nRUN cp z /else\nCOPY w /\n"
    assert images.copied(text) == ["x", "y", "w"]


def test_label_is_found_in_containerds_table():
    listing = (
        "REF TYPE DIGEST SIZE PLATFORMS LABELS\n"
        "ghcr.io/a:1 application/x sha256:b 3.0 MiB linux/amd64 "
        f"io.cri-containerd.image=managed,{load.LABEL}=abc\n"
    )
    assert load.parse_label(listing) == "abc"
    assert load.parse_label(listing.replace(load.LABEL, "other")) is None


def test_lists_may_have_comments(tmp_path):
    (tmp_path / "packages.txt").write_text("# why\npython3  # the interpreter\n\nconntrack\n")
    assert rootfs.lines(tmp_path / "packages.txt") == ["python3", "conntrack"]
    assert rootfs.lines(tmp_path / "absent.txt") == []


def test_base_image_whose_build_failed_does_not_stay(monkeypatch: pytest.MonkeyPatch):
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(Engine, "works", lambda _, *words: calls.append(words))
    with pytest.raises(ClusterError), rootfs.complete_or_absent(Engine(name="podman"), "base:1"):
        raise ClusterError("mmdebstrap exited with code 25")
    assert calls == [("image", "rm", "base:1")]
