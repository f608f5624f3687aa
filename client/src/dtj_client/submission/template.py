"""Templates: parts of jobs that an administrator offers as ConfigMaps, and how a job is merged with one.

A template is a ConfigMap with the label dtj.dev/template, in the user's namespace or in SHARED. Its key
job.yaml holds the `spec`, and if needed labels and annotations, that a submitted job begins with.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dtj_client.errors import ClientError
from dtj_client.from_yaml import documents
from dtj_client.kube.kubectl import Json, Kubectl

LABEL = "dtj.dev/template"
DESCRIPTION = "dtj.dev/description"  # annotation
SHARED = "dtj-templates"  # namespace
KEY = "job.yaml"


@dataclass(frozen=True, kw_only=True)
class Template:
    """What a ConfigMap offers.

    shared   whether it is in the shared namespace
    text     YAML of a part of a job
    """

    name: str
    shared: bool
    description: str
    text: str

    @property
    def job(self) -> Json:
        """The part of a job. Raises ClientError if it is not one."""
        objects = documents(self.text, f"template {self.name}: {KEY} is not YAML", _FIX)
        found = objects[0] if len(objects) == 1 else None
        if not isinstance(found, dict) or set(found) - {"metadata", "spec"}:
            raise ClientError(f"template {self.name}: {KEY} is not an object with metadata and spec", _FIX)
        try:
            names = [each["name"] for each in found["spec"]["template"]["spec"]["containers"]]
        except KeyError:
            names = []
        except TypeError as error:
            raise ClientError(f"template {self.name}: {KEY} is not a part of a job", _FIX) from error
        if names and "trainer" not in names:
            raise ClientError(f"template {self.name}: no container is named trainer", _FIX)
        return found


_CONTAINERS = ("containers", "initContainers")
_WHOLE = ("volume",)  # of two sources of one volume only one can hold
_FIX = "correct the ConfigMap, or ask its administrator"


def available(kubectl: Kubectl) -> tuple[list[Template], list[str]]:
    """Return the templates of both namespaces, the user's own first, and what could not be read."""
    found, problems = _in_namespace(kubectl, shared=False), []
    try:
        own = {each.name for each in found}
        shared = _in_namespace(kubectl.elsewhere(SHARED), shared=True)
        found += [each for each in shared if each.name not in own]
    except ClientError as error:
        problems = [f"no templates of namespace {SHARED}: {error.message}"]
    return found, problems


def find(kubectl: Kubectl, name: str) -> Template:
    """Return a template; one in the user's namespace is taken before a shared one. Raises ClientError."""
    found, problems = available(kubectl)
    for each in found:
        if each.name == name:
            return each
    near = difflib.get_close_matches(name, [each.name for each in found])
    fix = (
        f"did you mean {' or '.join(near)}?" if near else f"kubectl dtj templates{kubectl.chosen} lists them"
    )
    raise ClientError("; ".join([f"there is no template {name}", *problems]), fix)


def _in_namespace(kubectl: Kubectl, *, shared: bool) -> list[Template]:
    return [
        Template(
            name=each["metadata"]["name"],
            shared=shared,
            description=(each["metadata"].get("annotations") or {}).get(DESCRIPTION, ""),
            text=(each.get("data") or {}).get(KEY, ""),
        )
        for each in kubectl.labelled("configmaps", LABEL)
    ]


def merge(below: Any, above: Any, field: str = "") -> Any:
    """Lay `above` over `below`: objects field by field, lists of named items item by item.

    Containers with the same name are merged, sources of variables joined; all other items and lists are
    replaced.
    """
    if isinstance(below, Mapping) and isinstance(above, Mapping) and field not in _WHOLE:
        return {**below, **{key: merge(below.get(key), value, key) for key, value in above.items()}}
    if field == "envFrom" and isinstance(below, list) and isinstance(above, list):
        return [*(each for each in below if each not in above), *above]
    by = _key(above)
    if by and by == _key(below):
        items = {each[by]: each for each in below}
        for each in above:
            known = items.get(each[by]) if field in _CONTAINERS else None
            items[each[by]] = merge(known, each)
        return list(items.values())
    return above


def origins(merged: Json, layers: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield each field of a job and the first layer that has it with the same value, else `default`.

    Of a list that is joined, all layers that have a part.
    """
    known = {name: dict(fields(layer)) for name, layer in layers.items()}
    for path, value in fields(merged):
        same = [name for name, fields in known.items() if fields.get(path) == value]
        parts = " and ".join(name for name, fields in known.items() if path in fields)
        yield path, next(iter(same), parts or "default")


def fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each field that has no fields of its own."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from fields(each, f"{path}.{key}" if path else str(key))
    elif by := _key(value):
        for each in value:
            yield from fields({k: v for k, v in each.items() if k != by}, f"{path}[{each[by]}]")
    else:
        yield path, value


def _key(value: Any) -> str:
    """What identifies the items of a list, such as containers, volumes or mounts; empty for other lists."""
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        for key in ("mountPath", "name"):  # a volume may be mounted twice
            if len({each.get(key) for each in value} - {None}) == len(value):
                return key
    return ""
