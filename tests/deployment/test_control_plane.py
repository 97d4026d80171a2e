"""What `python -m tests.deployment.chart.real` sends is valid; no control plane is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deployment.chart.controlplane import ControlPlane, pod_status
from tests.deployment.chart.helm import rendering, values_files
from tests.deployment.chart.real import AFTER, kind_of
from tests.deployment.chart.schemas import check_kubernetes
from tests.deployment.chart.templates import pods


@pytest.mark.parametrize("name", sorted(values_files()))
def test_simulated_pod_statuses_are_valid(name: str) -> None:
    for owner in pods(rendering(name)):
        status = pod_status(owner.pod)
        assert check_kubernetes("1.30", {**owner.pod, "status": status}) == []
        # Pods of helm's tests succeed.
        assert (status["phase"] == "Succeeded") == owner.name.startswith("Pod/")
    assert AFTER[name] in values_files()


def test_created_kinds_are_valid_definitions() -> None:
    schema = {"type": "object", "properties": {"spec": {"type": "object"}}}
    for each in (
        kind_of("RayCluster", "ray.io", "v1", schema),
        kind_of("HTTPRoute", "gateway.networking.k8s.io", "v1", None),
    ):
        assert check_kubernetes("1.30", each) == []


def test_missing_programs_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no program etcd and no kube-apiserver"):
        ControlPlane(tmp_path, tmp_path)
