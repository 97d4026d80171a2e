"""Private interfaces of Ray that xcray uses: these tests fail if a release of Ray removes one."""

from __future__ import annotations

from ray._private import state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from xcray.workers.ray import cluster_state as ray_nodes

NODE = "0" * 56


def test_ray_still_has_the_private_interfaces():
    """If this fails after an upgrade of Ray, fix `read_gcs` and `soft_affinity`."""
    assert all(
        callable(getattr(state.state, name))
        for name in ("available_resources_per_node", "get_draining_nodes")
    )
    assert (
        NodeAffinitySchedulingStrategy(NODE, soft=True, _spill_on_unavailable=True).node_id == NODE
    )
    assert ray_nodes.soft_affinity(NODE).soft
