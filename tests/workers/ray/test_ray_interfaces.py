"""What xcray asks of a Ray that Ray does not promise: here it is said at once when a release takes it away."""

from __future__ import annotations

from ray._private import state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from xcray.workers.ray import cluster_state as ray_nodes

NODE = "0" * 56


def test_ray_still_has_what_no_public_door_leads_to():
    """If this fails after an upgrade of Ray: `ray_nodes.told_by_head` and `ray_nodes.seat_at` are the two places to mend."""
    assert all(
        callable(getattr(state.state, name))
        for name in ("available_resources_per_node", "get_draining_nodes")
    )
    assert (
        NodeAffinitySchedulingStrategy(NODE, soft=True, _spill_on_unavailable=True).node_id == NODE
    )
    assert ray_nodes.seat_at(NODE).soft
