"""Two members write one table, of Delta or a database, on a real broker: handover, SIGKILL and restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.realkafka.deltajars import delta_conf
from tests.realkafka.jars import find_java

from .harness import Independent, Query, Record, newest_commit, planned_records, skipped, wait_for
from .table_host import HostedMember, TableHost
from .table_sinks import actions, table_records

pytestmark = pytest.mark.kafka

Member = HostedMember | Query


@pytest.fixture(scope="module")
def conf() -> dict[str, str]:
    """Return Spark's settings for Delta."""
    with skipped("NO DELTA JARS, a shared table is not shown"):
        return delta_conf(find_java())


@pytest.fixture(scope="module")
def host(conf: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableHost]:
    """Return the application of all members that no test kills with their driver."""
    made = TableHost(tmp_path_factory.mktemp("host"), conf)
    yield made
    made.close()


class Shared:
    """Two members and the table that they share."""

    def __init__(self, sink: str, host: TableHost, client: Independent, options: dict[str, str], folder: Path) -> None:
        self.client, self.table = client, folder / "table"
        self.topic, self.group = options["subscribe"], options["kafka.group.id"]
        self.settings = {"sink": sink, "table": str(self.table), "options": options}
        self._host, self._folder = host, folder
        client.create_topic(self.topic, 4)
        self._sent = 0

    def start(self, name: str) -> HostedMember:
        """Start a member; one of the same name goes on from its checkpoint."""
        checkpoint = str(self._folder / name / "checkpoint")
        return HostedMember(self._host, self.settings | {"name": name, "checkpoint": checkpoint})

    def produce(self, count: int = 200) -> None:
        """Produce records round robin."""
        self.client.produce(self.topic, (f"v{self._sent + n}" for n in range(count)), 4)
        self._sent += count

    def wait_for_all(self, *members: Member) -> Counter[Record]:
        """Wait until the table has every record; return how often it has each."""
        wanted = self.client.records(self.topic)
        wait_for(
            f"{len(wanted)} records in the table",
            lambda: wanted <= table_records(self.table).keys(),
            90,
            lambda: "\n".join(member.log() for member in members),
        )
        found = table_records(self.table)
        assert found.keys() == wanted
        return found

    def wait_shared(self, *members: Member) -> None:
        """Wait until each of two members owns two partitions, and the group has what is in the table."""
        wait_for(
            "two partitions for each member",
            lambda: sorted(map(len, self.client.members(self.group))) == [2, 2],
            90,
            lambda: "\n".join(member.log() for member in members),
        )

    def settle(self, member: Member) -> None:
        """Wait until all batches are complete and committed to the group."""
        wait_for("lag 0", lambda: self.client.lag(self.group, self.topic) == 0, 60, member.log)


def in_flight(query: Member) -> set[Record]:
    """Return the records of the batches that the offset log has and the commit log does not."""
    planned = max(int(entry.name) for entry in (query.checkpoint / "offsets").glob("[0-9]*"))
    done = newest_commit(query.checkpoint)
    return {record for batch in range(done + 1, planned + 1) for record in planned_records(query.checkpoint, batch)}


def forget_last_commit(query: Member) -> set[Record]:
    """Leave the checkpoint as a crash between the sink's write and Spark's commit log does; return the batch."""
    last = newest_commit(query.checkpoint)
    for name in (f"{last}", f".{last}.crc"):
        (query.checkpoint / "commits" / name).unlink(missing_ok=True)
    return set(planned_records(query.checkpoint, last))


def share_and_hand_over(shared: Shared) -> tuple[HostedMember, HostedMember]:
    """One member writes, a second one joins, both write: the table has each record once."""
    first = shared.start("first")
    shared.produce()
    shared.wait_for_all(first)
    second = shared.start("second")
    shared.produce(20)  # each member's next batch lets a rebalance go on
    shared.wait_shared(first, second)
    return first, second


SINKS = ("append_once_per_query", "delta", "merge_each_record_once")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sink", SINKS)
def test_p1_p2_p6_two_members_share_a_delta_table(
    sink: str, host: TableHost, client: Independent, options: dict[str, str], tmp_path: Path
) -> None:
    """1. a second member joins, 2. it leaves cleanly and comes back, 3. it is killed, and its last batch is in the
    table but not in its commit log, 4. the first member takes over, 5. the second restarts and runs that batch again.

    No record is in the table twice: Delta knows the batch of this query.
    """
    shared = Shared(sink, host, client, options, tmp_path)
    first, second = share_and_hand_over(shared)
    shared.produce()
    shared.wait_for_all(first, second)
    shared.settle(first)
    second.stop()
    shared.produce()
    shared.wait_for_all(first)
    second = shared.start("second")
    shared.wait_shared(first, second)
    shared.produce()
    shared.wait_for_all(first, second)
    shared.settle(first)

    second.kill()
    batch = forget_last_commit(second)
    assert batch, "nothing is shown"
    shared.produce()
    shared.wait_for_all(first)
    second = shared.start("second")
    shared.wait_shared(first, second)
    shared.produce()
    found = shared.wait_for_all(first, second)
    shared.settle(first)
    first.stop()
    second.stop()
    found = table_records(shared.table)
    assert {record: times for record, times in found.items() if times > 1} == {}
    if sink != "merge_each_record_once":
        ids = {action["txn"]["appId"] for action in actions(shared.table) if "txn" in action}
        assert len(ids) == 2, "each member has its own id"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sink", ["append_once_per_query", "merge_each_record_once", "insert_each_record_once"])
def test_p6_a_batch_that_another_member_repeats(
    sink: str, host: TableHost, conf: dict[str, str], client: Independent, options: dict[str, str], tmp_path: Path,
    start_query: Callable[..., Query],
) -> None:  # fmt: skip
    """1. a member has written a batch, 2. it is killed before Spark records that, 3. the other member takes over and
    repeats the batch, 4. the first one restarts and runs it again.

    The id of a query protects its own batches only. A key of topic, partition and offset keeps each record once.
    """
    shared = Shared(sink, host, client, options, tmp_path)
    gate = tmp_path / "gate"
    first = shared.start("first")
    gate.touch()
    # A driver of its own, which is killed with all that it has started.
    killed = start_query("second", conf=conf, gate=str(gate), **shared.settings)
    killed.wait_started()
    shared.wait_shared(first, killed)
    shared.produce(20)
    shared.wait_for_all(first, killed)
    shared.settle(first)
    wait_for("no batch in flight", lambda: not in_flight(killed), 60, killed.log)
    gate.unlink()
    Path(f"{gate}.reached").unlink(missing_ok=True)
    shared.produce()
    wait_for("a batch that is written", Path(f"{gate}.reached").exists, 60, killed.log)
    killed.kill()
    # What came for it after this batch was planned, the first member reads alone.
    crashed = in_flight(killed)
    assert crashed, "nothing is shown"
    assert crashed <= table_records(shared.table).keys()
    wait_for("the first member to own all", lambda: [len(m) for m in client.members(shared.group)] == [4], 60)
    shared.settle(first)
    gate.touch()
    second = shared.start("second")
    shared.wait_shared(first, second)
    shared.produce()
    shared.wait_for_all(first, second)
    shared.settle(first)
    first.stop()
    second.stop()
    found = table_records(shared.table)
    twice = {record for record, times in found.items() if times > 1}
    assert max(found.values()) <= 2
    assert twice == (crashed if sink == "append_once_per_query" else set())


def test_members_that_merge_the_same_records_at_once(host: TableHost, tmp_path: Path) -> None:
    """Members that start together create the table, and then all succeed. A member that has lost a partition without
    noticing writes at the same time as the partition's next owner."""
    answer = host.call("race", str(tmp_path / "table"))
    assert "failed first: 0" not in answer, "no two of them created the table at once: nothing is shown"
    assert "conflicts: 0" not in answer, "no two of them wrote at once: nothing is shown"
    assert table_records(tmp_path / "table") == Counter({("orders", 0, offset): 1 for offset in range(80)})
    assert "with one id for all: 1 of 2 batches" in answer


def test_the_file_sink_skips_batches_of_a_second_query(
    client: Independent, options: dict[str, str], topic: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Why members need folders of their own: Spark counts batches by number, of whichever query."""
    client.create_topic(topic, 1)

    def run(member: str, folder: Path) -> None:
        client.produce(topic, (f"{member}{n}" for n in range(10)), 1)
        location = str(tmp_path / f"checkpoint-{member}")
        reader = spark.readStream.format("groupkafka").options(**options | {"checkpointLocation": location})
        writer = reader.load().writeStream.format("parquet").option("checkpointLocation", location)
        query = writer.option("path", str(folder)).trigger(availableNow=True).start()
        assert query.awaitTermination(120), "the query did not end"

    for member in ("first", "second"):
        run(member, tmp_path / "shared")
    wait_for("lag 0", lambda: client.lag(options["kafka.group.id"], topic) == 0, 30)
    lost = spark.read.parquet(str(tmp_path / "shared"))
    assert {row.offset for row in lost.select("offset").collect()} == set(range(10)), "of 20 records"

    for member in ("third", "fourth"):
        run(member, tmp_path / "own" / f"member={member}")
    kept = spark.read.parquet(str(tmp_path / "own")).select("member", "offset").collect()
    assert {(row.member, row.offset) for row in kept} == {
        (member, offset) for member, first in (("third", 20), ("fourth", 30)) for offset in range(first, first + 10)
    }
