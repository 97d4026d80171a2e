"""A small evaluator of NetworkPolicies: whether one pod can reach another on a port.

The rules are those of Kubernetes. If no policy selects a pod for a direction, every path in that
direction is open. Otherwise a path is open if one rule of one policy that selects the pod allows
it. Both ends must allow it. Rules without `from`, `to` or `ports` allow all of them. An address
block never matches a pod here, because pods of this release have no addresses yet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.deployment.chart.helm import NAMESPACE, Objects


class Peer(NamedTuple):
    """A pod with its labels and namespace, or an outside address without a namespace."""

    name: str
    labels: dict[str, str]
    namespace: str | None = NAMESPACE

    @property
    def namespace_labels(self) -> dict[str, str]:
        """The label with the name that Kubernetes gives each namespace."""
        return {"kubernetes.io/metadata.name": self.namespace} if self.namespace else {}


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a label selector matches; an empty one matches all."""
    if any(labels.get(name) != value for name, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", []):
        value, values = labels.get(rule["key"]), rule.get("values", [])
        fields = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not fields[rule["operator"]]:
            return False
    return True


def _matches(peer: dict[str, Any], pod: Peer, home: str) -> bool:
    """Return whether a NetworkPolicyPeer of a policy in the namespace `home` matches this pod."""
    if "ipBlock" in peer:
        return pod.namespace is None and peer["ipBlock"]["cidr"] == "0.0.0.0/0"
    if pod.namespace is None:
        return False
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"], pod.namespace_labels):
            return False
    elif pod.namespace != home:
        return False
    return selects(peer.get("podSelector", {}), pod.labels)


def _port(rule: dict[str, Any], port: int, protocol: str, names: dict[str, int]) -> bool:
    if not rule.get("ports"):
        return True
    for each in rule["ports"]:
        if each.get("protocol", "TCP") != protocol:
            continue
        expected = each.get("port")
        expected = names.get(expected) if isinstance(expected, str) else expected
        if expected is None and "port" not in each:
            return True
        if expected is not None and expected <= port <= each.get("endPort", expected):
            return True
    return False


def _allowed(
    policies: Objects,
    pod: Peer,
    other: Peer,
    direction: str,
    port: int,
    protocol: str,
    names: dict[str, int],
) -> bool:
    """Return whether the policies of one end allow a path in a direction, "Ingress" or "Egress"."""
    if pod.namespace != NAMESPACE:
        return True  # policies of other namespaces are not evaluated
    key, side = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    selecting = [
        each
        for each in policies
        if selects(each["spec"]["podSelector"], pod.labels)
        and direction in each["spec"]["policyTypes"]
    ]
    if not selecting:
        return True
    for policy in selecting:
        for rule in policy["spec"].get(key) or []:
            peers = rule.get(side)
            if _port(rule, port, protocol, names) and (
                not peers or any(_matches(peer, other, NAMESPACE) for peer in peers)
            ):
                return True
    return False


def reaches(
    policies: Objects,
    source: Peer,
    target: Peer,
    port: int,
    protocol: str = "TCP",
    names: dict[str, int] | None = None,
) -> bool:
    """Return whether `source` can connect to a port of `target`. names: ports of the target."""
    known = names or {}
    out = _allowed(policies, source, target, "Egress", port, protocol, known)
    return out and _allowed(policies, target, source, "Ingress", port, protocol, known)


def policies_of(objects: Objects) -> Objects:
    """Return the NetworkPolicies of a release."""
    return [each for each in objects if each["kind"] == "NetworkPolicy"]
