"""Reads packages as JSON and prints a CycloneDX document, with the packages of requirements/release.txt."""

from __future__ import annotations

import json
import sys

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL


def main() -> None:
    given = json.load(sys.stdin)
    image = Component(type=ComponentType.CONTAINER, name=given["name"], version=given["version"])
    bom = Bom()
    bom.metadata.component = image
    for package in given["packages"]:
        component = library(package)
        bom.components.add(component)
        bom.register_dependency(image, [component])
    print(JsonV1Dot6(bom).output_as_string(indent=1))


def library(package: dict[str, object]) -> Component:
    """Return a package as a component."""
    kind, name, version = str(package["kind"]), str(package["name"]), str(package["version"])
    factory, names = LicenseFactory(), package["licences"]
    assert isinstance(names, list)
    licences = [factory.make_from_string(each) for each in names]
    if len(licences) > 1:  # an expression must be the only licence of a component
        licences = [
            factory.make_with_name(each.value) if isinstance(each, LicenseExpression) else each
            for each in licences
        ]
    namespace = "debian" if kind == "deb" else None
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        purl=PackageURL(kind, namespace, name, version),
        licenses=licences,
    )


if __name__ == "__main__":
    main()
