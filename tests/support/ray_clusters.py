"""Ray clusters of several nodes on one machine, and the use of their object stores."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray
from ray._private.internal_api import node_stats
from ray.cluster_utils import Cluster

from xcray.schedule import placement_timeouts
from xcray.workers.ray.session import (
    NAMESPACE,
    environment,
    local_ray_environment,
    make_short_root,
    start_node,
)
from xcray.workers.ray.token import write_token

QUICK = {  # a dead node is noticed in seconds
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    # dead nodes refuse at once; living nodes have 30 s to answer under load
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "3",
}


@contextmanager
def named_once() -> Iterator[None]:
    """Keep pools from requesting a slow worker again, under another name, for ten minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement_timeouts, "STUCK_SECONDS", 600.0)
        yield


class Patient(Cluster):
    """Cluster with a long start-up timeout for its nodes, for a loaded machine."""

    def add_node(self, *inputs: Any, **how: Any) -> Any:
        """Add a node (see Ray)."""
        return start_node(lambda: super(Patient, self).add_node(*inputs, **how))


@contextmanager
def several_nodes(*cpus: int, store: int = 100 << 20) -> Iterator[Cluster]:
    """Start a separate Ray with one node per number of CPUs, plus the driver's, which has none.

    Each node has `store` bytes of object store. The temporary folder is private to this Ray and is
    removed with it.
    """
    root = make_short_root()
    write_token(root / "token")
    settings = {
        **local_ray_environment(root / "token"),
        **QUICK,
        "RAY_ADDRESS": None,
        "RAY_TMPDIR": str(root),
    }
    with environment(settings), named_once():
        cluster = Patient(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": store,
                "dashboard_host": "127.0.0.1",
            },
        )
        try:
            for count in cpus:
                cluster.add_node(num_cpus=count, object_store_memory=store)
            ray.init(
                address=cluster.address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level="WARNING",
            )
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(root, ignore_errors=True)


def store_use(what: str = "object_store_bytes_used") -> dict[str, int]:
    """Return bytes of the object store of each living node, by node id.

    what: "object_store_bytes_used", or "spilled_bytes_total" for the bytes written to disk so far
    because the store was full.
    """
    out = {}
    for node in ray.nodes():
        if node["Alive"]:
            stats: Any = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], False)
            out[node["NodeID"]] = int(getattr(stats.store_stats, what))
    return out
