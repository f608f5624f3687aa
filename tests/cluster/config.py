"""Names, versions and folders. Nothing here starts a program or writes a file.

Each version is written once: in the lock files of go/ for programs we build, below for images we pull.
"""

import hashlib
import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GO_MODULES = Path(__file__).parent / "go"

# Built for the kind version in go/kind, hence the digest. The patch version may differ from the one
# that we build: our code depends on the minor version only.
STOCK_NODE_IMAGE = (
    "docker.io/kindest/node:v1.35.8@sha256:07b2536e30b803ed61d1677a79df6115f798ce64c80f9e22f6ed45afd09323c0"
)
WORKERS = 2
SPARE = "dtj.dev/spare"  # label and taint of one more worker, which tests may break beside other tests
POD_NETWORK = "10.244.0.0/16"
SHARED_FOLDER = "/var/lib/dtj-shared"  # mounted in every node, in place of shared storage
IMAGES = {
    "operator": "ghcr.io/dtj-dev/operator:0.1.0",
    "trainer": "ghcr.io/dtj-dev/trainer:0.1.0-cpu",
}
CUDA_TRAINER = "ghcr.io/dtj-dev/trainer:0.1.0"  # built on the Dockerfile's own base


def cache() -> Path:
    """The only folder outside the checkout that we write to: DTJ_CACHE, or ~/.cache/dtj."""
    return Path(os.environ.get("DTJ_CACHE") or Path.home() / ".cache" / "dtj").expanduser().absolute()


def cluster_name(checkout: Path = ROOT) -> str:
    """Each checkout has its own cluster, so that two checkouts on one machine do not share one."""
    return "dtj-" + hashlib.sha256(str(checkout.resolve()).encode()).hexdigest()[:6]


def kubeconfig() -> Path:
    """The cluster's credentials, beside the checkout's other build products; never ~/.kube/config."""
    return ROOT / "build" / "kubeconfig"


def borrowed_kubeconfig() -> Path | None:
    """The kubeconfig, in DTJ_TEST_KUBECONFIG, of an existing cluster to use instead of our own. We never
    create, remove or break that cluster.
    """
    path = os.environ.get("DTJ_TEST_KUBECONFIG")
    return Path(path).expanduser().absolute() if path else None


def version_of(module: str, requirement: str) -> str:
    """The version, like "v1.35.4", at which go/<module>/go.mod locks a requirement."""
    text = (GO_MODULES / module / "go.mod").read_text()
    found = re.search(rf"^(?:require )?\s*{re.escape(requirement)} (v\S+)", text, re.MULTILINE)
    if found is None:
        raise LookupError(f"{GO_MODULES / module / 'go.mod'} does not require {requirement}")
    return found[1]


def kubernetes_version() -> str:
    return version_of("kubernetes", "k8s.io/kubernetes")


def key(*parts: str | bytes | Path) -> str:
    """A short name for a set of inputs: files by content, folders by all files in them."""
    digest = hashlib.sha256()

    def add(data: bytes) -> None:
        digest.update(
            len(data).to_bytes(8, "big") + data
        )  # the length keeps ("ab", "c") and ("a", "bc") apart

    for part in parts:
        if isinstance(part, Path):
            files = sorted(p for p in part.rglob("*") if p.is_file()) if part.is_dir() else [part]
            files = [file for file in files if "__pycache__" not in file.parts]
            for file in files:
                add(str(file.relative_to(part)).encode() if file != part else b"")
                add(file.read_bytes())
        else:
            add(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()[:12]
