"""Objects as YAML that people read: in the order of their fields, long texts with their line ends."""

import re
from typing import Any

import yaml

# Texts that kubectl reads as a number or a truth value, and PyYAML does not: 3e-4, 08, y.
_TYPED = re.compile(r"[-+]?(?:0[xXoObB][0-9a-fA-F_]+|[0-9_.]+(?:[eE][-+]?[0-9_]+)?)|[yYnN]")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write what occurs twice twice, without anchors."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _TYPED.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(*objects: Any) -> str:
    """The objects, each a document; without a line end at the end."""
    return str(yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=100)).removesuffix("\n")
