"""What `group` shows: the members' raw bytes decoded, the text and the JSON."""

from __future__ import annotations

import json

import pytest

from spark_groupsource.assignors.notes import LeaderNote, MemberNote
from spark_groupsource.cli.group.describe import decoded
from spark_groupsource.cli.group.member_data import MemberData, meaning, shown_data, shown_partitions
from spark_groupsource.cli.group.view import (
    DescribedMember,
    GroupDescription,
    GroupReport,
    group_json,
    group_lines,
    short_ids,
)
from spark_groupsource.lag.model import LagInput, lag_of
from spark_groupsource.model.offsets import TopicPartition
from tests.unit.fakes import tp

# ConsumerProtocolSubscription of topic "orders", as each version has it: user data "x", owned orders-0 and -1,
# generation 7, rack "r1".
OWNED = b"\0\0\0\x01\0\x06orders\0\0\0\x02\0\0\0\0\0\0\0\x01"
BEGIN = b"\0\0\0\x01\0\x06orders\0\0\0\x01x"
SUBSCRIPTIONS = [
    b"\0\0" + BEGIN,
    b"\0\x01" + BEGIN + OWNED,
    b"\0\x02" + BEGIN + OWNED + b"\0\0\0\x07",
    b"\0\x03" + BEGIN + OWNED + b"\0\0\0\x07\0\x02r1",
]
# ConsumerProtocolAssignment of orders-0 and -1, without user data.
ASSIGNMENT = b"\0\x01" + OWNED + b"\xff\xff\xff\xff"
# What a worker of Kafka Connect says.
CONNECT = b"\0\x01\0\x15http://127.0.0.1:8083/\0\0\0\0"


def sized(raw: bytes) -> bytes:
    """Return bytes as the protocol has them, after their length."""
    return len(raw).to_bytes(4, "big") + raw


def subscription(note: bytes, rest: bytes = b"\0\0\0\0\xff\xff\xff\xff\xff\xff") -> bytes:
    """Return a subscription of version 3 with this user data; the member has nothing, and no rack."""
    return b"\0\x03\0\0\0\x01\0\x06orders" + sized(note) + rest


def seen(note: bytes, leader: bytes = b"", rest: bytes = b"\0\0\0\0\xff\xff\xff\xff\xff\xff") -> MemberData:
    """Return what a member said with this user data, and its leader with that."""
    data = decoded("consumer", subscription(note, rest), b"\0\x03\0\0\0\0" + sized(leader))
    assert data is not None
    return data


# --- the bytes


@pytest.mark.parametrize(
    ("version", "owned", "generation", "rack"),
    [(0, set(), -1, None), (1, {tp(0), tp(1)}, -1, None), (2, {tp(0), tp(1)}, 7, None), (3, {tp(0), tp(1)}, 7, "r1")],
)
def test_every_version_of_the_consumer_protocol(
    version: int, owned: set[TopicPartition], generation: int, rack: str | None
) -> None:
    raw = SUBSCRIPTIONS[version]
    expected = MemberData(len(raw), True, ("orders",), frozenset(owned), generation, rack, None, foreign_size=1)
    assert decoded("consumer", raw, ASSIGNMENT) == expected


def test_a_newer_version_is_read_as_the_newest_known() -> None:
    newer = b"\0\x09" + SUBSCRIPTIONS[3][2:] + b"more"
    data = decoded("consumer", newer, b"")
    assert data is not None
    assert (data.readable, data.generation, data.rack) == (True, 7, "r1")


def test_no_user_data_and_no_owned_partitions() -> None:
    data = decoded("consumer", b"\0\x01\0\0\0\x01\0\x06orders\xff\xff\xff\xff\0\0\0\0", b"")
    assert data is not None
    assert (data.readable, data.foreign_size, data.note, shown_data(data)) == (True, 0, None, "")


@pytest.mark.parametrize("kind", ["consumer", "connect"])
def test_what_is_not_of_the_protocol_is_measured(kind: str) -> None:
    data = decoded(kind, CONNECT, b"\0\x01")
    assert data == MemberData(len(CONNECT))
    assert shown_data(data) == "30 bytes of metadata"


@pytest.mark.parametrize("end", range(1, len(SUBSCRIPTIONS[3])))
def test_bytes_that_are_cut(end: int) -> None:
    assert decoded("consumer", SUBSCRIPTIONS[3][:end], ASSIGNMENT) == MemberData(end)


@pytest.mark.parametrize(
    "raw",
    [
        b"\0\x03\x7f\xff\xff\xff\0\x01a\0\0\0\0",  # two thousand million topics
        b"\0\0\0\0\0\x01\0\x01\xff\0\0\0\0",  # a name that is no text
    ],
)
def test_hostile_bytes(raw: bytes) -> None:
    assert decoded("consumer", raw, b"") == MemberData(len(raw))


def test_a_group_that_is_not_stable_reports_nothing() -> None:
    assert decoded("consumer", b"", b"") is None


# --- what our strategies add


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b'{"weight":3}', "weight=3"),
        (
            b'{"weight":3,"redundancy":2,"zone":"a","on":true,"of":[1]}',
            "weight=3, redundancy=2, zone=a, on=true, of=[1]",
        ),
        (b"heavy", "heavy"),
        (b"3", "3"),
        (b"", ""),
        (b"\xff\x00", "2 bytes of the strategy"),
        (b"\x1b[2J", "4 bytes of the strategy"),
        (b"x" * 81, "81 bytes of the strategy"),
    ],
)
def test_the_metadata_of_a_strategy(data: bytes, shown: str) -> None:
    one = seen(MemberNote(held=True, data=data).encode())
    assert one.note == MemberNote(held=True, data=data)
    assert shown_data(one) == shown


def test_a_text_is_what_the_json_says_too() -> None:
    assert meaning(b'{"weight":3}') == {"weight": 3}
    assert meaning(b"heavy") == "heavy"
    assert meaning(b"\xff") is None
    assert meaning(b"[" * 100_000) is None


def test_numbers_that_json_does_not_have() -> None:
    """A strategy written in Python may tell them; who reads the command's JSON knows no NaN."""
    data = b'{"load":NaN,"of":[Infinity,-Infinity,1e999],"weight":1.5}'
    one = seen(MemberNote(held=True, data=data).encode())
    report = GroupReport(GroupDescription("g", members=(DescribedMember("A", "a", "h", data=one),)), {})
    value = json.loads(group_json(report, 0), parse_constant=pytest.fail)
    assert value["members"][0]["metadata"]["data"] == {
        "load": "NaN", "of": ["Infinity", "-Infinity", "1e999"], "weight": 1.5,
    }  # fmt: skip
    assert shown_data(one) == 'load=NaN, of=["Infinity","-Infinity","1e999"], weight=1.5'


@pytest.mark.parametrize(("held", "verb"), [(True, "held"), (False, "had")])
def test_what_a_member_had_when_it_joined(held: bool, verb: str) -> None:
    one = seen(MemberNote(held).encode(), rest=OWNED + b"\0\0\0\x07\0\x02r1")
    assert shown_data(one) == f"rack r1, joined, {verb} orders 0-1 of generation 7"


def test_the_user_data_of_another_program() -> None:
    assert shown_data(seen(b"whatever")) == "8 bytes of user data"
    assert shown_data(seen(b'{"v":2,"held":true,"data":""}')) == "29 bytes of user data", "of a newer release"


def test_what_the_leader_adds() -> None:
    note = LeaderNote(frozenset({tp(3)}), "the topics have 3 and 4 partitions")
    one = seen(MemberNote(True).encode(), note.encode())
    assert one.leader == note
    assert shown_data(one) == "the leader could not assign partitions: the topics have 3 and 4 partitions"
    assert seen(b"", b"another's").leader == LeaderNote()


def test_partitions_as_a_person_reads_them() -> None:
    found = [tp(5), tp(0), tp(1), tp(2), tp(7), tp(8), tp(0, "refunds")]
    assert shown_partitions(found) == "orders 0-2,5,7-8; refunds 0"
    assert shown_partitions([]) == ""


# --- member ids


@pytest.mark.parametrize(
    ("member_id", "short"),
    [
        ("rdkafka-5f2a9c1d-0000-1111-2222-333344445555", "rdkafka-5f2a9c1d"),
        ("a-rather-long-client-id-of-a-query-5f2a9c1d-0000-1111-2222-333344445555", "a-rather-long-clie..-5f2a9c1d"),
        ("5f2a9c1d-0000-1111-2222-333344445555", "5f2a9c1d"),
        ("oGTNwpkxQyiBMkZBoZmbbw", "oGTNwpkxQyiBMkZBoZmbbw"),
        ("x" * 40 + "y" * 8, "x" * 22 + ".." + "y" * 8),
    ],
)
def test_short_ids(member_id: str, short: str) -> None:
    assert short_ids([member_id]) == {member_id: short}


def test_ids_that_would_be_the_same_stay_whole() -> None:
    first, second = (f"a-5f2a9c1d-0000-1111-2222-33334444555{n}" for n in (1, 2))
    other = "b-5f2a9c1d-0000-1111-2222-333344445555"
    assert short_ids([first, second, other]) == {first: first, second: second, other: "b-5f2a9c1d"}


# --- a whole group

ONE, TWO = "query-11111111-0000-1111-2222-333344445555", "query-22222222-0000-1111-2222-333344445555"


def weighted() -> GroupReport:
    """Return a group of two: one has orders-0 and -1, the other nothing but a standby; orders-2 is nobody's."""
    first = seen(MemberNote(True, b'{"weight":3}').encode())
    second = seen(MemberNote(True, b'{"weight":1}').encode(), LeaderNote(frozenset({tp(1)})).encode())
    members = (
        DescribedMember(ONE, "query", "10.0.0.4", "lake-1", frozenset({tp(0), tp(1)}), data=first),
        DescribedMember(TWO, "query", "10.0.0.5", "lake-2", data=second),
    )
    description = GroupDescription(
        "shop", "Stable", "classic", "consumer", "redundant", ("broker:9092", 1), members, ("something",)
    )
    lag_inputs = [LagInput(tp(0), 238, 0, 250), LagInput(tp(1), None, 0, 50), LagInput(tp(2), 4, 10, 100)]
    return GroupReport(description, {one.partition: lag_of(one, 0) for one in lag_inputs})


def test_a_group_in_text() -> None:
    assert group_lines(weighted()) == [
        "group shop: Stable, 2 members, lag 152",
        "protocol classic, strategy redundant, coordinator broker:9092 (id 1)",
        "",
        "member          client id  host      instance id  partitions  standby  lag  metadata",
        "query-11111111  query      10.0.0.4  lake-1                2            62  weight=3",
        "query-22222222  query      10.0.0.5  lake-2                0        1    0  weight=1",
        "",
        "topic   partition  committed  end  lag  member          standby",
        "orders          0        238  250   12  query-11111111",
        "orders          1          -   50   50  query-11111111  query-22222222  no committed offset: all unread",
        "orders          2          4  100   90  (unassigned)                    6 lost: missing on the broker",
        "total                              152                                  6 lost",
        "note: something",
    ]


def test_a_group_in_json() -> None:
    value = json.loads(group_json(weighted(), 1_700_000_000_000))
    assert (value["group"], value["at_ms"], value["state"], value["strategy"]) == (
        "shop", 1_700_000_000_000, "Stable", "redundant",
    )  # fmt: skip
    assert value["coordinator"] == {"address": "broker:9092", "id": 1}
    first, second = value["members"]
    assert (first["member_id"], first["partitions"], first["lag"]) == (ONE, {"orders": [0, 1]}, 62)
    assert (second["standby"], second["metadata"]["data"]) == ({"orders": [1]}, {"weight": 1})
    assert [one["members"] for one in value["partitions"]] == [[ONE], [ONE], []]
    assert value["partitions"][1]["standby"] == [TWO]
    assert value["partitions"][2] | {"members": []} == {
        "topic": "orders", "partition": 2, "committed": 4, "end": 100, "lag": 90, "lost": 6, "members": [],
        "standby": [],
    }  # fmt: skip
    assert (value["total"], value["notes"]) == ({"lag": 152, "lost": 6}, ["something"])


def test_a_kip_848_group_on_its_way() -> None:
    members = (
        DescribedMember("A", "a", "h", None, frozenset({tp(0), tp(1)}), frozenset({tp(0)})),
        DescribedMember("B", "b", "h", None, frozenset(), frozenset({tp(1)})),
        DescribedMember("C", "c", "h", None, frozenset({tp(2)}), frozenset({tp(2)})),
        DescribedMember("D", "d", "h", None, frozenset({tp(3)}), frozenset()),
    )
    report = GroupReport(GroupDescription("g", "Reconciling", "consumer", None, "uniform", None, members), {})
    said = group_lines(report)
    assert said[1] == "protocol consumer, strategy uniform, coordinator not known"
    assert said[3:8] == [
        "member  client id  host  partitions  lag  metadata",
        "A       a          h              2    0  moves to orders 0",
        "B       b          h              0    0  moves to orders 1",
        "C       c          h              1    0",
        "D       d          h              1    0  moves to no partition",
    ]
    assert json.loads(group_json(report, 0))["members"][1]["target"] == {"orders": [1]}


def test_a_group_without_members() -> None:
    report = GroupReport(
        GroupDescription("g", "Empty", "classic", "consumer"), {tp(0): lag_of(LagInput(tp(0), 1, 0, 5), 0)}
    )
    assert group_lines(report) == [
        "group g: Empty, 0 members, lag 4",
        "protocol classic, strategy -, coordinator not known",
        "",
        "topic   partition  committed  end  lag  member",
        "orders          0          1    5    4  (unassigned)",
        "total                                4",
    ]


def test_members_that_are_no_consumers() -> None:
    member = DescribedMember("connect-1", "connect-1", "h", data=decoded("connect", CONNECT, b""))
    report = GroupReport(GroupDescription("g", "Stable", "classic", "connect", "sessioned", None, (member,)), {})
    assert group_lines(report)[1:] == [
        "protocol classic of type connect, strategy sessioned, coordinator not known",
        "",
        "member     client id  host  partitions  lag  metadata",
        "connect-1  connect-1  h              0    0  30 bytes of metadata",
    ]
    assert json.loads(group_json(report, 0))["members"][0]["metadata"] == {"bytes": 30}


def test_a_partition_whose_log_is_not_reported() -> None:
    member = DescribedMember("A", "a", "h", None, frozenset({tp(0)}))
    said = group_lines(
        GroupReport(GroupDescription("g", "Stable", "classic", "consumer", "range", None, (member,)), {})
    )
    assert said[-2].split(maxsplit=6) == [
        "orders", "0", "-", "-", "-", "A",
        "its log is unknown: the topic or the right DESCRIBE on it is missing",
    ]  # fmt: skip


def test_two_owners_are_both_named() -> None:
    members = tuple(DescribedMember(name, "c", "h", None, frozenset({tp(0)})) for name in "AB")
    report = GroupReport(GroupDescription("g", "Stable", members=members), {tp(0): lag_of(LagInput(tp(0), 1, 0, 5), 0)})
    assert "A B" in group_lines(report)[-2]
    assert group_lines(report)[1] == "protocol not known, strategy -, coordinator not known"


def test_no_text_of_a_member_steers_the_terminal() -> None:
    member = DescribedMember("A", "\x1b[2Jme", "h\n", "i\x07")
    said = group_lines(GroupReport(GroupDescription("g", "Stable", strategy="\x1b", members=(member,)), {}))
    assert all(line.isprintable() for line in said)
    assert "?[2Jme" in said[4]
