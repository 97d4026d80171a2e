"""Ray's of several nodes on one machine, and how full their object stores are: what tests and
benchmarks of teams look at.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private.internal_api import node_stats
from ray.cluster_utils import Cluster

from xcray.workers.ray.session import (
    NAMESPACE,
    environment,
    local_ray_environment,
    make_short_root,
    retry_slow_start,
    write_token,
)

QUICK = {  # a dead node is noticed in seconds
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    # the dead refuse at once; who lives and finds no time to answer has half a minute
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "3",
}


class Patient(Cluster):
    """A cluster whose nodes may take long to come, where others work."""

    def add_node(self, *given: Any, **how: Any) -> Any:
        """See Ray."""
        return retry_slow_start(lambda: super(Patient, self).add_node(*given, **how))


@contextmanager
def several_nodes(*cpus: int, store: int = 100 << 20) -> Iterator[Cluster]:
    """A Ray of one's own with a node for each number of CPUs, beside the driver's, which has none;
    `store` bytes a node.

    Its temporary folder is its own, and goes with it.
    """
    root = make_short_root()
    write_token(root / "token")
    with environment(
        {
            **local_ray_environment(root / "token"),
            **QUICK,
            "RAY_ADDRESS": None,
            "RAY_TMPDIR": str(root),
        }
    ):
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
    """Bytes in the object store of each living node, by the node's identity; or
    "spilled_bytes_total": written to disk so far because the store was full.
    """
    out = {}
    for node in ray.nodes():
        if node["Alive"]:
            stats: Any = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], False)
            out[node["NodeID"]] = int(getattr(stats.store_stats, what))
    return out
