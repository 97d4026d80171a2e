"""Private interfaces of Ray that xcray uses: these tests fail if a release of Ray removes one."""

from __future__ import annotations

import inspect

import pytest
from ray._private import ray_constants, services, state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from xcray.workers.ray import cluster_state as ray_nodes
from xcray.workers.ray import session
from xcray.workers.ray.session import AGENT_PORTS, patient_start

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


def test_a_dashboard_may_start_as_late_as_its_node() -> None:
    """Ray leaves a dashboard behind that is not up in time."""
    assert "ray_constants.RAY_DASHBOARD_STARTUP_TIMEOUT_S" in inspect.getsource(
        services.start_api_server
    )
    before = ray_constants.RAY_DASHBOARD_STARTUP_TIMEOUT_S
    with patient_start():
        assert ray_constants.RAY_DASHBOARD_STARTUP_TIMEOUT_S == session.START_SECONDS
    assert ray_constants.RAY_DASHBOARD_STARTUP_TIMEOUT_S == before


def test_a_node_does_not_wait_for_the_ports_of_its_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends itself if it waits for fifteen seconds, as it does for each port that is 0."""
    assert inspect.signature(services.start_raylet).parameters.keys() >= set(AGENT_PORTS)
    assert 'f"--listen-port={dashboard_agent_listen_port}"' in inspect.getsource(
        services.start_raylet
    )
    commands = list[list[str]]()
    monkeypatch.setattr(services, "start_ray_process", lambda command, *_: commands.append(command))

    def start_raylet(**ports: int) -> None:
        command = ["raylet", f"agent --grpc-port=1 --listen-port={ports[AGENT_PORTS[2]]}"]
        services.start_ray_process(command, ray_constants.PROCESS_TYPE_RAYLET)
        assert all(ports.values())

    monkeypatch.setattr(services, "start_raylet", start_raylet)
    with patient_start():
        services.start_raylet(**dict.fromkeys(AGENT_PORTS))
    ((_, agent, flag),) = commands
    assert flag == f"--dashboard_agent_listen_port={agent.rpartition('=')[2]}"
    assert services.start_raylet is start_raylet
