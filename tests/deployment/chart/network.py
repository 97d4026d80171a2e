"""A small evaluator of NetworkPolicies: may this pod reach that one on this port?

Kubernetes' rules: a pod that no policy selects, for a direction, is open in it; else a path is open
when one rule of one policy that selects the pod allows it. Both ends must agree. Rules without
`from`, `to` or `ports` allow all of them. An address block never matches a pod here: it speaks of
addresses, and pods of this release have none yet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.deployment.chart.helm import NAMESPACE, Objects


class Peer(NamedTuple):
    """A pod, or somebody outside: labels of the pod, name and labels of its namespace; an outside
    address has no namespace.
    """

    name: str
    labels: dict[str, str]
    namespace: str | None = NAMESPACE

    @property
    def namespace_labels(self) -> dict[str, str]:
        """Kubernetes labels each namespace with its name."""
        return {"kubernetes.io/metadata.name": self.namespace} if self.namespace else {}


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector matches; an empty one matches all."""
    if any(labels.get(name) != value for name, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", []):
        value, values = labels.get(rule["key"]), rule.get("values", [])
        held = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not held[rule["operator"]]:
            return False
    return True


def _matches(peer: dict[str, Any], pod: Peer, home: str) -> bool:
    """Whether a NetworkPolicyPeer of a policy in the namespace `home` means this pod."""
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
        wanted = each.get("port")
        wanted = names.get(wanted) if isinstance(wanted, str) else wanted
        if wanted is None and "port" not in each:
            return True
        if wanted is not None and wanted <= port <= each.get("endPort", wanted):
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
    """Whether the policies of one end let a path be, in one direction: "Ingress" or "Egress"."""
    if pod.namespace != NAMESPACE:
        return True  # others' policies are not ours to judge
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
    """Whether `source` may open a connection to a port of `target`; names: the target's named
    ports.
    """
    known = names or {}
    out = _allowed(policies, source, target, "Egress", port, protocol, known)
    return out and _allowed(policies, target, source, "Ingress", port, protocol, known)


def policies_of(objects: Objects) -> Objects:
    """The NetworkPolicies of a release."""
    return [each for each in objects if each["kind"] == "NetworkPolicy"]
