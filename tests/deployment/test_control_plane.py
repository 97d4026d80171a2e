"""The checks of `python -m tests.deployment.chart.real` find faults; no control plane is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deployment.chart import ground
from tests.deployment.chart.controlplane import ControlPlane, root_of
from tests.deployment.chart.helm import CHART, rendering, values_files
from tests.deployment.chart.real import OLDER, amount, lacking, older, security
from tests.deployment.chart.schemas import check_kubernetes
from tests.deployment.chart.simulated_nodes import DONE, pod_status
from tests.deployment.chart.templates import pods

pytestmark = pytest.mark.drill


@pytest.mark.parametrize(
    ("messages", "selection", "lost"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, []),  # the server can add fields
        ({"a": {"b": 1}}, {"a": {}}, [".a.b"]),
        ({"a": [], "b": {}, "c": "", "d": None}, {}, []),  # empty values count as missing
        ({"a": []}, {"a": [1]}, [".a"]),  # but not if the server has a value
        ({"a": False}, {}, [".a"]),
        ({"a": 0}, {}, [".a"]),
        ({"cpu": "0.5", "memory": "1024Mi"}, {"cpu": "500m", "memory": "1Gi"}, []),
        ({"cpu": 2}, {"cpu": "2"}, []),
        ({"memory": "1Gi"}, {"memory": "1G"}, [".memory"]),
        (
            {"a": [{"name": "x", "v": 1}, {"name": "y"}]},
            {"a": [{"name": "y"}, {"name": "x", "v": 2}]},
            [".a[].v"],
        ),
        ({"a": [1, 2]}, {"a": [1]}, [".a"]),
        ({"a": [1, 2]}, {"a": [2, 1]}, [".a[]", ".a[]"]),
        ({"a": {"b": 1}}, {"a": "b"}, [".a"]),
    ],
)
def test_fields_that_a_server_drops_are_found(
    messages: Any, selection: Any, lost: list[str]
) -> None:
    assert list(lacking(messages, selection)) == lost


def test_quantities_become_numbers_and_other_values_text() -> None:
    assert [amount(each) for each in ("250m", "1k", "1Ki", "2Gi", 3)] == [
        0.25,
        1000,
        1024,
        2**31,
        3,
    ]
    assert [amount(each) for each in ("1h", "m", True, "v1.2.3")] == ["1h", "m", "True", "v1.2.3"]


@pytest.mark.parametrize("name", sorted(values_files()))
def test_simulated_pod_statuses_are_valid(name: str) -> None:
    for owner in pods(rendering(name)):
        status = pod_status(owner.pod)
        assert check_kubernetes("1.30", {**owner.pod, "status": status}) == []
        # Pods of helm's tests succeed.
        assert (status["phase"] == "Succeeded") == owner.name.startswith("Pod/")
        owned = {
            **owner.pod,
            "metadata": {
                **owner.pod["metadata"],
                "ownerReferences": [{"kind": "Job", "name": "j"}],
            },
        }
        assert pod_status(owned)["phase"] == "Succeeded"
        assert set(security(owner.pod)) == {"pod"} | {
            each["name"] for each in owner.pod["spec"]["containers"]
        } | {each["name"] for each in owner.pod["spec"].get("initContainers", [])}
    job = next(each for each in rendering("production") if each["kind"] == "Job")
    assert check_kubernetes("1.30", {**job, "status": DONE}) == []


def test_created_kinds_are_valid_definitions() -> None:
    result = ground.kind_of(
        "RayCluster", "ray.io", "v1", {"type": "object", "properties": {"spec": {"type": "object"}}}
    )
    assert check_kubernetes("1.30", result) == []
    assert result["metadata"]["name"] == "rayclusters.ray.io"
    fields = {
        "properties": {"a": {"default": "", "type": "string"}, "b": {"default": False}},
        "required": ["a"],
    }
    old = {
        "properties": {"a": {"default": "unnamed", "type": "string"}, "b": {"default": False}},
        "required": ["a"],
    }
    assert ground.without_empty_defaults(fields) == old
    assert (
        check_kubernetes(
            "1.30", ground.kind_of("HTTPRoute", "gateway.networking.k8s.io", "v1", None)
        )
        == []
    )


def test_the_chart_for_an_older_server_differs_only_where_needed(tmp_path: Path) -> None:
    chart = older(tmp_path)
    named = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert yaml.safe_load((chart / "Chart.yaml").read_text()) == {
        key: each for key, each in named.items() if key != "kubeVersion"
    }
    changed = set()
    for path in sorted(CHART.rglob("*")):
        if path.is_file() and path.name != "Chart.yaml":
            text, after = path.read_text(), (chart / path.relative_to(CHART)).read_text()
            changed |= {new for new in OLDER if new in text and new not in after}
            for new, old in OLDER.items():
                text = text.replace(new, old)
            assert after == text or path.parent.parent != CHART
    assert changed == set(OLDER)  # each replacement is still needed


def test_missing_programs_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no program etcd and no kube-apiserver"):
        ControlPlane(tmp_path, tmp_path)
    assert (root_of("v1"), root_of("apps/v1")) == ("/api/v1", "/apis/apps/v1")
