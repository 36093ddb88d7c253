"""Make a simulated group client, by its group's protocol."""

from __future__ import annotations

from tests.sim.kafka.client_base import GroupClient
from tests.sim.kafka.client_classic import ClassicClient
from tests.sim.kafka.client_consumer import ConsumerClient
from tests.sim.kafka.coordinator import Coordinator
from tests.sim.world import Process, World


def make_client(
    world: World, coordinator: Coordinator, process: Process, query_name: str, instance_id: str | None = None
) -> GroupClient:
    """Make a client, which is `GroupPort`. With an instance id it is a static member."""
    kind = ConsumerClient if coordinator.settings.protocol == "kip848" else ClassicClient
    return kind(world, coordinator, process, query_name, instance_id)
