"""What the API server would refuse about a NetworkPolicyPeer.

A peer that the operator is given is part of the NetworkPolicy of every job, so one that is refused must be
found before.
"""

import re
from ipaddress import ip_interface
from typing import Any

_SELECTORS = ("podSelector", "namespaceSelector")
_PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"((?=.{{1,253}}/){_PART}(\.{_PART})*/)?{_NAME}")
_VALUE = re.compile(f"({_NAME})?")


def problem(peer: object) -> str:
    """Return what is wrong with it, or an empty text."""
    if not isinstance(peer, dict) or not peer:
        return "must be an object with podSelector, namespaceSelector or ipBlock"
    if unknown := peer.keys() - {"ipBlock", *_SELECTORS}:
        return f"has an unknown field {min(unknown)}"
    if "ipBlock" in peer:
        return "has a selector beside ipBlock" if len(peer) > 1 else _of_block(peer["ipBlock"])
    return next(filter(None, map(_of_selector, peer.values())), "")


def _of_block(block: Any) -> str:
    if not isinstance(block, dict) or block.keys() - {"cidr", "except"}:
        return "has an ipBlock with other fields than cidr and except"
    try:
        whole, *parts = map(_range, (block.get("cidr"), *block.get("except", ())))
    except ValueError as error:
        return f"has an ipBlock with a range that is {error}"
    inside = (each.version == whole.version and each != whole and each.subnet_of(whole) for each in parts)
    return "" if all(inside) else "has an ipBlock that excepts a range outside its cidr, or all of it"


def _range(text: object) -> Any:
    """Return the network; raises ValueError."""
    try:
        length = str(text).partition("/")[2]
        found = ip_interface(str(text) if length.isdecimal() else "")
    except ValueError:
        raise ValueError(f"not like 10.0.0.0/8: {text}") from None
    if found.ip != found.network.network_address:  # Kubernetes 1.36 and newer refuse it
        raise ValueError(f"not like {found.network}, because it has bits beyond its length: {text}")
    return found.network


def _of_selector(selector: Any) -> str:
    if not isinstance(selector, dict) or selector.keys() - {"matchLabels", "matchExpressions"}:
        return "has a selector with other fields than matchLabels and matchExpressions"
    labels = selector.get("matchLabels", {})
    if not isinstance(labels, dict):
        return "has matchLabels that are not an object"
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]
    return next(
        filter(None, map(_of_requirement, (*requirements, *selector.get("matchExpressions", ())))), ""
    )


def _of_requirement(given: Any) -> str:
    if not isinstance(given, dict) or not given.get("key"):
        return "has a requirement without a key"
    key, operator, values = given["key"], given.get("operator"), given.get("values") or ()
    if not _fits(_KEY, key):
        return f"has an invalid label key {key!r}: must be like name or example.com/name"
    if operator in ("In", "NotIn"):
        wrong = [value for value in values if not _fits(_VALUE, value)]
        if wrong:
            return f"has an invalid value {wrong[0]!r} of the label {key}: must be like a-b_c.1"
        return "" if values else f"has the operator {operator} without values"
    if operator not in ("Exists", "DoesNotExist"):
        return "has a requirement whose operator is not In, NotIn, Exists or DoesNotExist"
    return f"has the operator {operator} with values" if values else ""


def _fits(form: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and form.fullmatch(text) is not None
