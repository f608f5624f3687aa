"""Objects as YAML that people read: in the order of their fields, long texts with their line ends."""

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write what occurs twice twice, without anchors."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(*objects: Any) -> str:
    """The objects, each a document; without a line end at the end."""
    return str(yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=100)).removesuffix("\n")
