"""Read the offsets of checkpoints and other groups.

`adopt` commits those of a query of Spark's own Kafka source, or of another group; `reset --to checkpoint` those of a
query of this source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_groupsource import errors
from spark_groupsource.checkpoint.folder import CheckpointFolder
from spark_groupsource.checkpoint.location import shown_location
from spark_groupsource.checkpoint.log import SparkCheckpoint, read_spark_checkpoint
from spark_groupsource.checkpoint.state_folder import StateFolder
from spark_groupsource.cli.admin import GroupAdmin
from spark_groupsource.cli.offset_moves import PartitionLog, WantedOffset, partition_names
from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.errors import CommandError, OffsetFormatError
from spark_groupsource.model.commit_metadata import GroupOffset, metadata_of
from spark_groupsource.model.offsets import SourceOffset, TopicPartition, parse_offset, parsed_json
from spark_groupsource.options.offset_spec import partition_offsets

_NAME_OURS = "name the checkpointLocation of the writer of a query with format('groupkafka')"
_NAME_THE_CHECKPOINT = "name the checkpointLocation of the writer of a query with format('kafka')"


@dataclass(frozen=True, slots=True)
class Origin:
    """The offsets to adopt. `name` appears in errors, `why` in the table; `notes` are printed."""

    name: str
    why: str
    positions: Mapping[TopicPartition, int]
    notes: tuple[str, ...] = ()


def checkpoint_origin(location: str, source: str | None) -> Origin:
    """Return the offsets of a checkpoint's query: the end of its newest completed batch.

    `source` is the id of a source in the offset log, needed if several read from Kafka. Raises `CommandError`.
    """
    name, checkpoint = _read(location, _NAME_THE_CHECKPOINT)
    positions = _kafka_source(name, checkpoint, source)
    if checkpoint.completed is None:
        why, where = "initial offset, no batch was completed", "the initial offsets"
    else:
        why = where = f"end of batch {checkpoint.completed}"
    notes: tuple[str, ...] = ()
    if checkpoint.logged != checkpoint.completed:
        notes = (
            f"NOTE: batch {checkpoint.logged} of {name} was begun and is not complete. Its records are read again, from"
            f" {where}. If its sink must not get them twice, let the old query complete the batch first.",
        )
    return Origin(name, why, positions, notes)


def _kafka_source(name: str, checkpoint: SparkCheckpoint, source: str | None) -> dict[TopicPartition, int]:
    found = {}
    for number, text in checkpoint.offsets.items():
        try:
            found[number] = partition_offsets(text)
        except ValueError:
            continue  # another kind of source
    if not found and any(_ours(text) is not None for text in checkpoint.offsets.values()):
        raise _unusable(
            name, "it belongs to a query of groupkafka", "keep it for that query, whose group has its offsets"
        )
    if source is None and len(found) == 1:
        return next(iter(found.values()))
    if source in found:
        return found[source]
    listed = ", ".join(f"{number} ({', '.join(_topics(positions))})" for number, positions in sorted(found.items()))
    if source is None and found:
        raise _unusable(name, f"it has several sources with Kafka offsets: {listed}", "choose one with --source")
    wanted = "no source" if source is None else f"no source {source}"
    reason = f"it has {wanted} with offsets of Spark's own Kafka source"
    raise _unusable(name, reason + (f", only {listed}" if found else ""), _NAME_THE_CHECKPOINT)


def own_checkpoint(location: str) -> tuple[SourceOffset, bool]:
    """Return the end of the newest complete batch of a query of this source, and whether the query has state.

    Raises `CommandError`.
    """
    name, checkpoint = _read(location, _NAME_OURS)
    if checkpoint.completed is None:
        raise _unusable(name, "it has no complete batch", _NAME_OURS)
    found = [offset for offset in map(_ours, checkpoint.offsets.values()) if offset is not None]
    if len(found) != 1:
        instead = _NAME_OURS if found else f"{_NAME_OURS}; 'groupkafka adopt' is for one of Spark's own Kafka source"
        raise _unusable(name, f"it has {len(found)} sources of groupkafka, and one is needed", instead)
    with_state = StateFolder(location).exists()
    if with_state is None:
        # Without an answer, too few partitions would be moved.
        reason = "it is not known whether its query has state: its folder 'state' or file 'metadata' is not readable"
        raise _unusable(name, reason, "repeat the command when the whole checkpoint is there")
    return found[0], with_state


def check_read(
    location: str, ends: Iterable[TopicPartition], groups: Mapping[TopicPartition, GroupOffset], group: str
) -> None:
    """Raise `CommandError` if the group has offsets, and none of the partitions that a checkpoint's query has read.

    With the checkpoint of another group's query, all partitions would move to where this group began.
    """
    if groups and groups.keys().isdisjoint(ends):
        reason = f"group '{group}' has no offset of any partition that its query has read"
        instead = "check --group, and name the checkpointLocation of a query of this group"
        raise _unusable(_name_of(location), reason, instead)


def _read(location: str, instead: str) -> tuple[str, SparkCheckpoint]:
    """Return a checkpoint and its name for users. Raises `CommandError`, which says what to do `instead`."""
    name = _name_of(location)
    try:
        return name, read_spark_checkpoint(CheckpointFolder(location))
    except ValueError as error:
        raise _unusable(name, str(error), instead) from None


def _name_of(location: str) -> str:
    return f"the checkpoint '{shown_location(location)}'"


def _ours(text: str) -> SourceOffset | None:
    try:
        return parse_offset(parsed_json("offset", text))
    except OffsetFormatError:
        return None


def group_origin(group: str, admin: GroupAdmin) -> Origin:
    """Return the committed offsets of another group. Raises `CommandError` if it has none."""
    name = f"group '{group}'"
    held = {p: committed.offset for p, committed in admin.group_offsets().items() if committed.offset is not None}
    if not held:
        raise _unusable(name, "it has no committed offsets", "check --from-group and --bootstrap-servers")
    notes: tuple[str, ...] = ()
    if members := admin.member_names():
        notes = (
            f"WARNING: {name} has live members ({', '.join(members)}). What they read from now on is read again. Stop"
            " them first.",
        )
    return Origin(name, f"committed by {name}", held, notes)


def chosen_topics(origin: Origin, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the topics that the user named. Raises `CommandError` for one that the old query has not read."""
    known_topics = _topics(origin.positions)
    unread = [topic for topic in wanted if topic not in known_topics]
    if unread:
        reason = f"it has no offsets of topic {', '.join(unread)}, only of {', '.join(known_topics)}"
        raise _unusable(origin.name, reason, "check --topic")
    return wanted


def check_held(
    group: str, held: Mapping[TopicPartition, GroupOffset], wishes: Mapping[TopicPartition, WantedOffset]
) -> None:
    """Raise `CommandError` if the group already has other offsets of these partitions.

    Offsets that an earlier run of the same command committed are accepted: a commit may succeed partly, or its answer
    may be lost, and then the user repeats the command.
    """
    both = [p for p, wish in wishes.items() if p in held and not _is_adopted(held[p], wish.offset)]
    if both:
        raise CommandError(errors.GROUP_HAS_OFFSETS, group=group, partitions=partition_names(both))


def _is_adopted(held: GroupOffset, offset: int) -> bool:
    """Return whether an earlier run of `adopt` committed this offset, so that a repeated commit changes nothing.

    Then no query committed it (a repeated commit would override its checkpoint), and the offset is the partition's
    initial position (another one would be overwritten).
    """
    metadata = metadata_of(held)
    if metadata is None or metadata.reset is None or metadata.lineage != metadata.reset.id:
        return False
    return held.offset == metadata.pin.offset == offset


def wishes_of(
    origin: Origin, logs: Mapping[TopicPartition, PartitionLog], described: Mapping[str, TopicInfo]
) -> dict[TopicPartition, WantedOffset]:
    """Return the new offset of each partition. A partition that the old query has not seen starts at its beginning.

    Raises `CommandError` for offsets greater than the end of their log: the topic was recreated under the same name,
    and the query would skip its records.
    """
    positions = {p: offset for p, offset in origin.positions.items() if p.topic in described}
    behind_end = [
        f"{partition} is at {offset}, {_end_of(partition, logs, described)}"
        for partition, offset in sorted(positions.items())
        if partition not in logs or offset > logs[partition].end
    ]
    if behind_end:
        raise CommandError(errors.OFFSETS_BEHIND_END, origin=origin.name, partitions="; ".join(behind_end))
    return {
        partition: WantedOffset(positions[partition], origin.why)
        if partition in positions
        else WantedOffset(log.beginning, f"not in {origin.name}: beginning of the log")
        for partition, log in logs.items()
    }


def _end_of(
    partition: TopicPartition, logs: Mapping[TopicPartition, PartitionLog], described: Mapping[str, TopicInfo]
) -> str:
    if partition in logs:
        return f"its log ends at {logs[partition].end}"
    return f"the topic has {described[partition.topic].partition_count} partitions"


def _topics(partitions: Iterable[TopicPartition]) -> list[str]:
    return sorted({partition.topic for partition in partitions})


def _unusable(origin: str, reason: str, instead: str) -> CommandError:
    return CommandError(errors.ORIGIN_UNUSABLE, origin=origin, reason=reason, instead=instead)
