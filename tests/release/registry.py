"""Pushes images and the chart to a registry, and says under which digest each one is there."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import images, proc, tools
from tests.cluster.engine import Engine
from tests.cluster.errors import ClusterError

LOGIN_FIX = "docker login REGISTRY, and check that you may push there"


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """An image or chart in a registry.

    name    without tag or digest
    digest  "sha256:..."
    """

    name: str
    tag: str
    digest: str

    @property
    def reference(self) -> str:
        """The name by which it can be pulled and that cannot change its meaning."""
        return f"{self.name}:{self.tag}@{self.digest}"


@contextlib.contextmanager
def archive(runtime: Engine, image: str, labels: Mapping[str, str], folder: Path) -> Iterator[Path]:
    """Add labels to an image and write it to a file, which is removed at the end."""
    name = f"{image}-labelled"
    architecture = runtime("image", "inspect", "--format", "{{.Architecture}}", image).strip()
    runtime(
        "build", "--quiet", "--tag", name, f"--platform=linux/{architecture}",
        *(f"--label={key}={value}" for key, value in labels.items()),
        *images.fixed_time(runtime), "-", stdin=f"FROM {image}\n",
    )  # fmt: skip
    path = folder / f"{image.rpartition('/')[2].replace(':', '-')}.tar"
    try:
        runtime("save", "--output", path, name)
        yield path
    finally:
        path.unlink(missing_ok=True)
        runtime("image", "rm", name)


def push_image(archived: Path, name: str, tag: str) -> Pushed:
    """Push an image from a file of `docker save`; the layers are compressed on the way."""
    output = proc.run(
        tools.ensure("crane")["crane"], "push", archived, f"{name}:{tag}",
        step=f"pushing {name}:{tag}", fix=LOGIN_FIX,
    )  # fmt: skip
    return Pushed(name=name, tag=tag, digest=digest_in(output))


def push_index(images: Sequence[Pushed]) -> Pushed:
    """Give the images of several architectures one name, that of the first; a node pulls its own."""
    first = images[0]
    output = proc.run(
        tools.ensure("crane")["crane"], "index", "append", "--docker-empty-base",
        *(f"--manifest={each.name}@{each.digest}" for each in images), f"--tag={first.name}:{first.tag}",
        step=f"pushing {first.name}:{first.tag} for {len(images)} architectures", fix=LOGIN_FIX,
    )  # fmt: skip
    return Pushed(name=first.name, tag=first.tag, digest=digest_in(output.splitlines()[-1]))


def push_chart(source: Path, registry: str, operator: Pushed, folder: Path) -> Pushed:
    """Package the chart with the operator's image filled in, and push it; the package stays in `folder`."""
    helm = tools.ensure("helm")["helm"]
    chart = folder / source.name
    shutil.copytree(source, chart)
    try:
        values = chart / "values.yaml"
        values.write_text(with_image(values.read_text(), operator))
        package = proc.run(helm, "package", chart, f"--destination={folder}").rpartition(": ")[2].strip()
    finally:
        shutil.rmtree(chart)
    plain = ["--plain-http"] if is_loopback(registry) else []
    output = proc.run(
        helm, "push", package, f"oci://{registry}/charts", *plain, step="pushing the chart", fix=LOGIN_FIX
    )
    version = Path(package).stem.removeprefix(f"{source.name}-")
    return Pushed(name=f"{registry}/charts/{source.name}", tag=version, digest=digest_in(output))


def with_image(values: str, image: Pushed) -> str:
    """Fill the repository and the digest of an image into the chart's values, which keep their comments.

    Raises ClusterError if the values have no such lines.
    """
    for key, value in {"repository": image.name, "digest": image.digest}.items():
        values, changed = re.subn(rf"^(  {key}: ).*$", rf"\g<1>{value}", values, flags=re.MULTILINE)
        if changed != 1:
            raise ClusterError(f"the chart's values.yaml has {changed} lines `  {key}: ...`, expected one")
    return values


def digest_in(output: str) -> str:
    """Return the digest that a push reports.

    Raises ClusterError if it reports none.
    """
    found = re.search(r"sha256:[0-9a-f]{64}", output)
    if found is None:
        raise ClusterError(f"the push reported no digest: {output.strip()[:300]}")
    return found[0]


def is_loopback(registry: str) -> bool:
    """Whether a registry is on this machine, so that it is used without TLS."""
    host = registry.partition("/")[0].partition(":")[0]
    return host == "localhost" or host.startswith("127.")
