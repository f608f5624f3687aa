"""`submit --requirements`: an init container installs the packages of a file into a volume of the pod."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dtj_client.errors import ClientError
from dtj_client.from_yaml import decoded
from dtj_client.in_pod import program
from dtj_client.kube.kubectl import Json

INSTALLER = "packages"  # name of the init container and of the volume
FOLDER = "/packages"
PATH, _GIVEN = "PYTHONPATH", "PYTHONPATH_BEFORE_PACKAGES"
SITE = f"{FOLDER}/site"  # see in_pod/install.py
_REFERS = re.compile(r"^\s*(?:-[rc]|--requirement|--constraint)[\s=]*(?P<path>[^\s#]+)", re.MULTILINE)
_ELSEWHERE = re.compile(r"/|\$\{|\w+:")  # in the image, named by a variable, or a URL


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """A file with requirements, which goes along with the code.

    path    within the folder of the code
    text    its content
    others  the files to which it refers, by path
    """

    path: str
    text: str
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_hashed(self) -> bool:
        """Whether pip has to check the hash of every package: the file has some."""
        return "--hash=" in self.text


def read(path: str, folder: Path) -> Requirements:
    """Read a file within the folder, and those to which it refers. Raises ClientError."""
    found: dict[str, str] = {}
    folder = folder.resolve()
    _read((folder / path).resolve(), path, folder, found)
    (first, text), *others = found.items()
    return Requirements(path=first, text=text, others=dict(others))


def _read(file: Path, path: str, folder: Path, found: dict[str, str]) -> None:
    """Add a file, and those to which it refers; `path` is how the user named it."""
    try:
        text = decoded(file.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ClientError(
            f"cannot read the requirements {path}: {reason}", "name a file as pip install -r takes it"
        ) from error
    if not file.is_relative_to(folder):
        raise ClientError(f"{path} is outside of the folder of the code", "copy it into the folder")
    if (name := file.relative_to(folder).as_posix()) in found:
        return
    found[name] = text
    for each in _REFERS.finditer(text):
        other = each["path"].strip("\"'")
        if not _ELSEWHERE.match(other):
            beside = Path(os.path.normpath(file.parent / other))  # a link stays one: pip goes by its name
            _read(beside, f"{other} of {path}", folder, found)


def install(pod: Json, trainer: Json, found: Requirements, *, code: str) -> None:
    """Add the init container and its volume; `code` is the folder of the code in the pod."""
    mount = {"name": INSTALLER, "mountPath": FOLDER}
    source = program("install")
    checked = ["--require-hashes"] if found.is_hashed else []
    installer = {
        "name": INSTALLER,
        "command": ["python3", "-c", source, FOLDER, *checked, "-r", found.path],
        "workingDir": code,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # so that the status says why it failed
        "volumeMounts": [{"name": "app", "mountPath": code}, mount],
    }
    pod["initContainers"] = [*pod["initContainers"], installer]
    pod["volumes"] = [*pod["volumes"], {"name": INSTALLER, "emptyDir": {}}]
    trainer["volumeMounts"] = [*trainer["volumeMounts"], mount]


def add_to_path(env: Sequence[Json]) -> list[Json]:
    """The variables, with the folder of the packages behind those that PYTHONPATH names."""
    made: list[Json] = []
    before = ""
    for each in env:
        if each["name"] != PATH:
            made.append(each)
        elif "valueFrom" in each:  # of a Secret or a ConfigMap: Kubernetes puts it in
            made.append({**each, "name": _GIVEN})
            before = f"$({_GIVEN}):"
        elif each.get("value"):
            before = f"{each['value']}:"
    return [*made, {"name": PATH, "value": f"{before}{SITE}"}]
