"""Records that the broker removes before they are read (P8): at any moment, skipped only when that is wanted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from .harness import wait_for
from .holding import Held, released
from .test_drain import Scene, make_scene

__all__ = ["make_scene"]

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("place", ["before-partitions", "while-reading"])
def test_p8_records_deleted_between_the_plan_and_the_read_are_skipped(
    place: str, make_scene: Callable[[str], Scene]
) -> None:
    """The task finds its offset out of the log's range; it reports that, and reads on behind it."""
    scene = make_scene("cooperative")
    query = scene.start("first", failOnDataLoss="false")
    scene.told["first"].wait_for("assigned")
    scene.produce()
    query.wait_for_records(scene.client.records(scene.topic))
    held = Held("first", place)
    with released(held):
        scene.produce()
        held.wait_reached(scene.evidence)
        admin = AdminClient({"bootstrap.servers": scene.client.bootstrap_servers})
        (deleted,) = admin.delete_records([TopicPartition(scene.topic, 0, 15)]).values()
        deleted.result(30)
    scene.produce()
    query.wait_for_records(scene.client.records(scene.topic))
    wait_for("lag 0", lambda: scene.client.lag(scene.group, scene.topic) == 0, 30, scene.evidence)
    offsets = {offset for _, number, offset in query.completed_records() if number == 0}
    assert offsets >= set(range(10)) | set(range(15, 30))
