"""The network policies of the release open exactly the paths listed below.

Every pair of ends is tried with every port on which a pod listens. A path in the list must be open;
all others must be closed. So only pods of the release reach Ray, where a client can run any code.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deployment.chart.helm import helms, rendering, template_values, values_files
from tests.deployment.chart.network import Peer, policies_of, reaches
from tests.deployment.chart.templates import Owner, pods

FILES = sorted(values_files())
API, RUNNER, GCS, DASHBOARD, CLIENT, METRICS, AGENT = 8000, 8001, 6379, 8265, 10001, 8080, 52365
AUTOSCALER_METRICS, DASHBOARD_METRICS, SERVE, SSH, UNUSED = 44217, 44227, 8000, 22, 30000
PORTS = (
    API,
    RUNNER,
    GCS,
    DASHBOARD,
    CLIENT,
    METRICS,
    AGENT,
    AUTOSCALER_METRICS,
    DASHBOARD_METRICS,
    SSH,
    UNUSED,
)
# The Kubernetes API has the same port, at an unknown address.
ASKS_KUBERNETES = {
    "ray-head",
    "rayjob-head",
    "rayservice-head",
}
FIGURES = (METRICS, AUTOSCALER_METRICS, DASHBOARD_METRICS)

NEIGHBOUR = Peer("neighbour", {"app": "notebook"})  # another pod of the same namespace
UNRELATED = Peer("stranger", {"app": "anything"}, "elsewhere")
IMPOSTOR = Peer(
    "impostor",
    {"app.kubernetes.io/component": "api", "app.kubernetes.io/name": "xcray"},
    "elsewhere",
)
INGRESS = Peer("ingress", {"app": "controller"}, "ingress-nginx")
PROMETHEUS = Peer("prometheus", {"app": "prometheus"}, "monitoring")
OPERATOR = Peer("operator", {"app.kubernetes.io/name": "kuberay-operator"}, "kuberay")
DNS = Peer("dns", {"k8s-app": "kube-dns"}, "kube-system")
DATABASES = Peer("databases", {"app": "any"}, "databases")
INTERNET = Peer("internet", {}, None)
OUTSIDE = (NEIGHBOUR, UNRELATED, IMPOSTOR, INGRESS, PROMETHEUS, OPERATOR, DNS, DATABASES, INTERNET)


def peer(owner: Owner) -> Peer:
    """Return a pod of the release as a peer.

    The pod that cleans Redis for KubeRay has all labels of the head except one.
    """
    labels = owner.pod["metadata"]["labels"]
    cleans = labels.get("ray.io/node-type") == "redis-cleanup"
    return Peer(owner.role.replace("head", "cleanup") if cleans else owner.role, labels)


def inside(name: str) -> dict[str, Peer]:
    """Return one pod per role."""
    return {result.name: result for result in map(peer, pods(rendering(name)))}


def into(roles: set[str], ingress: bool) -> Iterator[tuple[str, str, int]]:
    """Yield every path into pods of the release that must be open."""
    askers = (
        {*roles, "neighbour"}
        - {"migrations"}
        - {role for role in roles if role.startswith("ray")}
        - {"api", "runner"}
    )
    # `sameNamespace`; the others have no outgoing path to it.
    yield from ((asker, "api", API) for asker in askers)
    if ingress:
        yield "ingress", "api", API
    yield "prometheus", "api", API
    if "runner" in roles:
        yield "prometheus", "runner", RUNNER
    for part in ("ray", "rayjob", "rayservice"):
        head, worker, cleanup = f"{part}-head", f"{part}-worker", f"{part}-cleanup"
        if head not in roles:
            continue
        family = [role for role in (head, worker, cleanup) if role in roles]
        yield from (
            (source, target, port) for source in family for target in family for port in PORTS
        )
        yield from (
            ("prometheus", target, port)
            for target in family
            if target != worker
            for port in FIGURES
        )
        yield "prometheus", worker, METRICS
        if part == "ray":
            yield from (
                (asker, head, port) for asker in ("api", "runner") for port in (GCS, DASHBOARD)
            )
        else:
            yield "operator", head, DASHBOARD
        if part == "rayservice":
            yield "neighbour", worker, SERVE
            yield "ingress", worker, SERVE


@pytest.mark.parametrize("name", FILES)
def test_paths_into_the_release_are_the_list(name: str) -> None:
    objects = rendering(name)
    policies, ends = policies_of(objects), inside(name)
    expected = set(into(set(ends), any(each["kind"] == "Ingress" for each in objects)))
    sources = [*ends.values(), *OUTSIDE]
    results = {
        (source.name, target.name, port)
        for target in ends.values()
        for source in sources
        for port in PORTS
        if reaches(policies, source, target, port)
    }
    assert results == expected


@pytest.mark.parametrize("name", FILES)
def test_paths_out_of_the_release_are_few(name: str) -> None:
    policies, ends = policies_of(rendering(name)), inside(name)
    for role, pod in ends.items():
        assert reaches(policies, pod, DNS, 53, "UDP"), role
        assert reaches(policies, pod, DNS, 53), role
        assert not reaches(policies, pod, DNS, 8443), role
        for target in (UNRELATED, INTERNET, NEIGHBOUR):
            opened = {
                port
                for port in (22, 25, 53, 80, 8080, 8443, 3306, 9000)
                if reaches(policies, pod, target, port)
            }
            assert opened == set(), f"{role} -> {target.name}"


@pytest.mark.parametrize(
    ("name", "port", "roles"),
    [
        ("minimal", 5432, set()),
        ("production", 5432, {"api", "runner", "migrations", "ray-head", "ray-cleanup"}),
        ("serving", 5432, {"api", "migrations"}),
        ("kueue", 5432, {"api", "runner", "migrations", "ray-head"}),
        ("autoscaled", 5432, {"api", "runner", "migrations", "ray-head", "rayservice-worker"}),
        ("production", 6379, {"ray-head", "ray-cleanup"}),
    ],
)
def test_only_pods_that_need_databases_reach_them(name: str, port: int, roles: set[str]) -> None:
    policies, ends = policies_of(rendering(name)), inside(name)
    assert {role for role, pod in ends.items() if reaches(policies, pod, DATABASES, port)} == roles


def test_only_pods_that_need_object_storage_reach_it() -> None:
    for name, roles in (
        ("minimal", set()),
        ("serving", {"api"}),
        ("kueue", set()),
        (
            "production",
            {"api", "runner", "ray-head", "ray-cleanup"},
        ),  # kubeApiTo is one address there
        (
            "autoscaled",
            {"api", "runner", "ray-head", "rayjob-head", "rayservice-worker"} | ASKS_KUBERNETES,
        ),
    ):
        policies, ends = policies_of(rendering(name)), inside(name)
        assert {
            role for role, pod in ends.items() if reaches(policies, pod, INTERNET, 443)
        } == roles, name


def test_policies_can_be_left_to_the_operator_of_the_cluster() -> None:
    for _ in helms():
        objects = template_values({"networkPolicy": {"enabled": False}})
        assert policies_of(objects) == []


def test_policies_are_evaluated_as_in_kubernetes() -> None:
    target = Peer("a", {"app": "a"})
    deny = {"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
    rule = {
        "spec": {
            "podSelector": {"matchLabels": {"app": "a"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"port": "http"}]}],
        }
    }
    pair = {
        "from": [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}},
                "podSelector": {"matchLabels": {"app": "b"}},
            }
        ]
    }
    both = {"spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [pair]}}
    assert reaches([], UNRELATED, target, 1)  # no policy: open
    assert not reaches([deny], UNRELATED, target, 1)
    assert reaches([deny, rule], UNRELATED, target, 80, names={"http": 80})
    assert not reaches([deny, rule], UNRELATED, target, 81, names={"http": 80})
    assert not reaches([deny, rule], UNRELATED, target, 80, "UDP", names={"http": 80})
    # Both selectors of one peer must match.
    assert reaches([both], Peer("b", {"app": "b"}, "elsewhere"), target, 1)
    assert not reaches([both], Peer("b", {"app": "b"}), target, 1)
    assert not reaches([both], UNRELATED, target, 1)
    out = {
        "spec": {
            "podSelector": {},
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
        }
    }
    assert not reaches([out], target, INTERNET, 443)
    everywhere = {
        "spec": {
            "podSelector": {},
            "policyTypes": ["Egress"],
            "egress": [{"ports": [{"port": 400, "endPort": 500}]}],
        }
    }
    assert reaches([everywhere], target, INTERNET, 443)
