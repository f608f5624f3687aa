"""What the API server would refuse about a NetworkPolicyPeer.

A peer that the operator is given is part of the NetworkPolicy of every job, so one that is refused must be
found before. Names and values of labels are left to the API server.
"""

from ipaddress import ip_network
from typing import Any

_SELECTORS = ("podSelector", "namespaceSelector")


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
    whole, parts = _range(block.get("cidr")), [_range(each) for each in block.get("except", ())]
    if whole is None or None in parts:
        return "has an ipBlock with a range that is not like 10.0.0.0/8"
    inside = (each.version == whole.version and each != whole and each.subnet_of(whole) for each in parts)
    return "" if all(inside) else "has an ipBlock that excepts a range outside its cidr, or all of it"


def _range(text: object) -> Any:
    """Return the network, or None."""
    if not isinstance(text, str) or not text.rpartition("/")[2].isdecimal() or "/" not in text:
        return None
    try:
        return ip_network(text)  # without bits beyond the prefix, which Kubernetes 1.36 and newer refuse
    except ValueError:
        return None


def _of_selector(selector: Any) -> str:
    if not isinstance(selector, dict) or selector.keys() - {"matchLabels", "matchExpressions"}:
        return "has a selector with other fields than matchLabels and matchExpressions"
    return next(filter(None, map(_of_requirement, selector.get("matchExpressions", ()))), "")


def _of_requirement(given: Any) -> str:
    if not isinstance(given, dict) or not given.get("key"):
        return "has a requirement without a key"
    operator, values = given.get("operator"), bool(given.get("values"))
    if operator in ("In", "NotIn"):
        return "" if values else f"has the operator {operator} without values"
    if operator not in ("Exists", "DoesNotExist"):
        return "has a requirement whose operator is not In, NotIn, Exists or DoesNotExist"
    return f"has the operator {operator} with values" if values else ""
