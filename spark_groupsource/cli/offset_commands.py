"""`reset`, `savepoint` and `adopt`: read group and cluster, plan with `offset_moves`, print, and commit on request.

The clients' own deadlines limit every wait.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from spark_groupsource import errors
from spark_groupsource.checkpoint.location import shown_location
from spark_groupsource.cli.admin import GroupAdmin
from spark_groupsource.cli.adopt_origins import Origin, check_held, check_read, chosen_topics, own_checkpoint, wishes_of
from spark_groupsource.cli.arguments import AdoptCommand, ResetCommand, SavepointCommand, TargetKind
from spark_groupsource.cli.offset_moves import (
    PartitionLog,
    WantedOffset,
    commit_item,
    in_topics,
    move_warnings,
    moves_table,
    partition_names,
    pin_of,
    plan_move,
)
from spark_groupsource.cli.output import Output
from spark_groupsource.cli.savepoint_file import Saved, Savepoint, read_savepoint, write_savepoint
from spark_groupsource.clock import Clock
from spark_groupsource.cluster.offset_lookup import all_partitions
from spark_groupsource.cluster.port import ClusterPort, Edge, TopicInfo
from spark_groupsource.errors import CommandError, KafkaUnavailableError
from spark_groupsource.model.commit_metadata import (
    GroupOffset,
    KnownTopics,
    Pin,
    metadata_of,
    next_reset,
)
from spark_groupsource.model.offsets import TopicPartition, same_topic
from spark_groupsource.options.times import shown_time

# Such a query is no member, and its next commit would override the new offsets.
UNSEEN_QUERIES = "queries with option assign cannot be detected: make sure that they are stopped"

Groups = Mapping[TopicPartition, GroupOffset]


class OffsetCommands:
    """Runs commands on one group."""

    def __init__(self, admin: GroupAdmin, cluster: ClusterPort, clock: Clock, output: Output) -> None:
        self._admin = admin
        self._cluster = cluster
        self._clock = clock
        self._output = output

    # --- savepoint

    def savepoint(self, command: SavepointCommand) -> None:
        """Write the group's offsets to a file. Raises errors of the catalogue."""
        groups = self._group_offsets()
        if not groups:
            raise _unknown(command)
        described = self._described(groups, (), command.connection.group)
        kept: dict[TopicPartition, Saved] = {}
        for partition in in_topics(groups, described):
            topic_id, group = described[partition.topic].topic_id, groups[partition]
            pin = pin_of(group, topic_id)
            if group.offset is None or (pin is None and metadata_of(group) is not None):
                self._output.print_line(f"left out: {partition}, whose offset belongs to a deleted topic of that name")
                continue
            kept[partition] = Saved(group.offset, pin)
        if not kept:
            # An older savepoint of this file stays.
            raise CommandError(errors.SAVEPOINT_EMPTY, group=command.connection.group, path=command.path)
        topics = {partition.topic for partition in kept}
        ids = {topic: described[topic].topic_id for topic in topics}
        taken_ms = int(self._clock.epoch_s() * 1000)
        savepoint = Savepoint(self._admin.cluster_id(), command.connection.group, taken_ms, ids, kept)
        write_savepoint(command.path, savepoint)
        self._output.print_line(
            f"{len(kept)} partitions of {len(topics)} topics saved in {command.path}, as of {shown_time(taken_ms)}"
        )

    # --- reset

    def reset(self, command: ResetCommand) -> None:
        """Print the moves, and commit them with `execute`. Raises errors of the catalogue.

        Steps: 1. the savepoint or checkpoint, 2. no members, 3. the group's offsets, 4. the topics, 5. the moves,
        6. one commit.
        """
        group = command.connection.group
        saved, moves_all = self._saved(command)
        self._refuse_members(group)
        groups = self._group_offsets()
        if command.target.kind is TargetKind.CHECKPOINT:
            check_read(command.target.place, saved.partitions, groups, group)
        # A savepoint can also restore a group that the broker has deleted.
        others = groups if moves_all else ()
        known = [*others, *saved.partitions]
        if not known:
            raise _unknown(command)
        described = self._described(known, command.topics, group)
        for topic in sorted(set(command.topics) - {partition.topic for partition in known}):
            note = "no query of it has read this topic. Check --topic, unless they are to read it from now on"
            self._output.print_line(f"NOTE: group {group} has no offset of topic {topic}: {note}")
        _refuse_recreated_topics(command, saved, described)
        logs = self._logs(_partitions(command.target.kind, known, described), described)
        if not logs:
            raise CommandError(errors.NO_INITIAL_OFFSET, partitions=f"topic {', '.join(described)}")
        wishes = self._wishes(command, groups, logs, saved)
        self._move(command, groups, logs, wishes, "Queries that start from now on use them.")

    # --- adopt

    def adopt(self, command: AdoptCommand, origin: Origin) -> None:
        """Print the offsets to adopt, and commit them with `execute`. Raises errors of the catalogue.

        Steps: 1. no members, 2. the topics, 3. the wanted offsets, 4. no other offsets in the group, 5. the moves,
        6. one commit.
        """
        group = command.connection.group
        self._refuse_members(group)
        described = self._described(origin.positions, chosen_topics(origin, command.topics), group)
        logs = self._logs(all_partitions(described), described)
        groups = self._group_offsets()
        wishes = wishes_of(origin, logs, described)
        if not command.overwrite:
            check_held(group, groups, wishes)
        for note in origin.notes:
            self._output.print_line(note)
        start = f"Start its queries with kafka.group.id={group}, and each with a new checkpointLocation."
        self._move(command, groups, logs, wishes, start)

    # --- helpers

    def _move(
        self,
        command: ResetCommand | AdoptCommand,
        groups: Groups,
        logs: Mapping[TopicPartition, PartitionLog],
        wishes: Mapping[TopicPartition, WantedOffset],
        then: str,
    ) -> None:
        """Print the moves. With `execute`, commit them, and print what to do then."""
        moves = [plan_move(partition, groups.get(partition), logs[partition], wishes[partition]) for partition in logs]
        self._output.print_line(moves_table(moves))
        for line in move_warnings(moves):
            self._output.print_line(line)
        if not command.execute:
            self._output.print_line("\nDry run: nothing was changed. Add --execute to commit the new offsets.")
            return
        group = command.connection.group
        reset = next_reset(groups.values(), int(self._clock.epoch_s() * 1000), str(uuid.uuid4()))
        ids = dict.fromkeys((partition.topic for partition in groups), "")
        known_topics = KnownTopics.of(ids | {partition.topic: log.topic_id for partition, log in logs.items()})
        items = []
        for move in moves:
            log = logs[move.partition]
            # No query of this source has read the partition yet: this is its initial position.
            pin = wishes[move.partition].pin or Pin(move.new, log.partition_count, known_topics)
            items.append(commit_item(move, pin, log.topic_id, reset))
        self._output.step(f"committing {len(items):,} offsets")
        try:
            self._admin.commit(items)
        except KafkaUnavailableError as error:
            reason = error.condition.template.format(**error.parameters)
            raise KafkaUnavailableError(errors.COMMIT_UNANSWERED, group=group, reason=reason) from None
        except KeyboardInterrupt:
            self._output.warn(f"the commit was interrupted and may have succeeded: check the offsets of group {group}")
            raise
        self._output.print_line(f"\nGroup {group}: {len(moves)} offsets committed. {then}")

    def _group_offsets(self) -> dict[TopicPartition, GroupOffset]:
        self._output.step("reading the group's offsets")
        return self._admin.group_offsets()

    def _refuse_members(self, group: str) -> None:
        self._output.step("reading the group's members")
        members = self._admin.member_names()
        if members:
            raise CommandError(errors.GROUP_HAS_MEMBERS, group=group, members=", ".join(members))
        if self._admin.is_simple():
            self._output.warn(UNSEEN_QUERIES)

    def _described(self, known: Iterable[TopicPartition], wanted: tuple[str, ...], group: str) -> dict[str, TopicInfo]:
        """Return the topics to work on. Deleted topics are left out; if the user named one, it is an error."""
        chosen = wanted or tuple(sorted({partition.topic for partition in known}))
        self._output.step(f"reading the partitions of {len(chosen):,} topics")
        missing = self._cluster.missing_topics(chosen)
        absent = [topic for topic in chosen if topic in missing]
        if absent and (wanted or len(absent) == len(chosen)):
            raise CommandError(errors.COMMAND_TOPIC_UNKNOWN, topics=", ".join(absent), group=group)
        for topic in absent:
            self._output.print_line(f"left out: topic {topic}, which no longer exists")
        return self._cluster.describe(topic for topic in chosen if topic not in missing)

    def _saved(self, command: ResetCommand) -> tuple[Savepoint, bool]:
        """Return the offsets of the target's file or checkpoint; other targets have none.

        Also return whether the group's other partitions move, too. Those that a checkpoint does not name do so if its
        query has state, which holds the records of all partitions.
        """
        place, group = command.target.place, command.connection.group
        if command.target.kind is TargetKind.CHECKPOINT:
            end, with_state = own_checkpoint(place)
            # Also of partitions that the query has handed over.
            ends = end.ends() if with_state else {item.partition: item.end for item in end.ranges}
            read = {partition: Saved(offset) for partition, offset in ends.items()}
            return Savepoint("", group, 0, dict(end.topic_ids), read), with_state
        if command.target.kind is not TargetKind.SAVEPOINT:
            return Savepoint("", group, 0, {}, {}), True
        path = Path(place)
        savepoint = read_savepoint(path)
        if savepoint.group != group:
            reason = f"it belongs to group '{savepoint.group}', not to '{group}'"
            raise CommandError(errors.SAVEPOINT_MISMATCH, path=path, reason=reason)
        cluster = self._admin.cluster_id()
        if savepoint.cluster != cluster:
            reason = f"it belongs to cluster {savepoint.cluster}, but this is {cluster}"
            raise CommandError(errors.SAVEPOINT_MISMATCH, path=path, reason=reason)
        return savepoint, True

    def _logs(
        self, partitions: list[TopicPartition], described: Mapping[str, TopicInfo]
    ) -> dict[TopicPartition, PartitionLog]:
        existing = [p for p in partitions if p.partition < described[p.topic].partition_count]
        self._output.step(f"reading the beginnings and ends of {len(existing):,} logs")
        beginnings = self._cluster.log_offsets(dict.fromkeys(existing, Edge.EARLIEST))
        # With open transactions, because the offset of a group that reads uncommitted records may be inside of one.
        ends = self._cluster.log_offsets(dict.fromkeys(existing, Edge.LATEST), uncommitted=True)
        logs = {}
        for partition in existing:
            info, beginning, end = described[partition.topic], beginnings[partition], ends[partition]
            if beginning is not None and end is not None:
                logs[partition] = PartitionLog(info.topic_id, info.partition_count, beginning.offset, end.offset)
        return logs

    def _wishes(
        self,
        command: ResetCommand,
        groups: Groups,
        logs: Mapping[TopicPartition, PartitionLog],
        saved: Savepoint,
    ) -> dict[TopicPartition, WantedOffset]:
        pins = {partition: pin_of(groups.get(partition), log.topic_id) for partition, log in logs.items()}
        match command.target.kind:
            case TargetKind.EARLIEST:
                return {p: WantedOffset(log.beginning, "beginning of the log", pins[p]) for p, log in logs.items()}
            case TargetKind.LATEST:
                return {p: WantedOffset(log.end, "end of the log", pins[p]) for p, log in logs.items()}
            case TargetKind.TIME:
                return self._wishes_at(command.target.time_ms, logs, pins)
            case TargetKind.CHECKPOINT:
                return {
                    p: _checkpoint_wish(saved.partitions.get(p), groups.get(p), log, pins[p]) for p, log in logs.items()
                }
            case TargetKind.SAVEPOINT:
                return {p: _saved_wish(saved, p, log, pins[p]) for p, log in logs.items()}
        missing = [partition for partition, pin in pins.items() if pin is None]
        if missing:
            raise CommandError(errors.NO_INITIAL_OFFSET, partitions=partition_names(missing))
        return {p: WantedOffset(pin.offset, "pinned initial offset", pin) for p, pin in pins.items() if pin is not None}

    def _wishes_at(
        self, time_ms: int, logs: Mapping[TopicPartition, PartitionLog], pins: Mapping[TopicPartition, Pin | None]
    ) -> dict[TopicPartition, WantedOffset]:
        wanted: dict[TopicPartition, Edge | int] = dict.fromkeys(logs, time_ms)
        self._output.step(f"looking for the first records since {shown_time(time_ms)} in {len(logs):,} logs")
        # Like the ends, with open transactions: without them, a time in an open transaction would resolve to the log's
        # end, and its records would be skipped.
        found = self._cluster.log_offsets(wanted, uncommitted=True)
        wishes = {}
        for partition, log in logs.items():
            first = found.get(partition)
            if first is None:
                why = f"no record at or after {shown_time(time_ms)}: end of the log"
                wishes[partition] = WantedOffset(log.end, why, pins[partition])
            else:
                why = f"first record at or after {shown_time(time_ms)}"
                wishes[partition] = WantedOffset(first.offset, why, pins[partition])
        return wishes


def _unknown(command: ResetCommand | SavepointCommand) -> CommandError:
    connection = command.connection
    return CommandError(errors.GROUP_UNKNOWN, group=connection.group, servers=connection.bootstrap_servers)


def _refuse_recreated_topics(command: ResetCommand, saved: Savepoint, described: Mapping[str, TopicInfo]) -> None:
    """Raise `CommandError` if a topic was recreated: the deleted topic's offsets would skip the new one's records."""
    ids = saved.topic_ids
    recreated = [
        topic for topic, info in described.items() if not same_topic(ids.get(topic, info.topic_id), info.topic_id)
    ]
    if recreated:
        reason = f"topic {', '.join(sorted(recreated))} was deleted and recreated since"
        raise CommandError(errors.SAVEPOINT_MISMATCH, path=shown_location(command.target.place), reason=reason)


def _partitions(
    kind: TargetKind, known: Iterable[TopicPartition], described: Mapping[str, TopicInfo]
) -> list[TopicPartition]:
    """Return the partitions to move: all existing ones, or only `known` ones for what has offsets of its own.

    `known` are the partitions that the group, the savepoint or the checkpoint has. The others have not been read, so
    the group has no offset to move, and a query still starts them as its starting options define.
    """
    if kind in (TargetKind.INITIAL, TargetKind.SAVEPOINT, TargetKind.CHECKPOINT):
        return in_topics(set(known), described)
    return all_partitions(described)


def _checkpoint_wish(item: Saved | None, group: GroupOffset | None, log: PartitionLog, pin: Pin | None) -> WantedOffset:
    """Return a partition's offset by a checkpoint. One that its query has not read goes to its initial offset.

    A query that gets a partition whose offset another program has set begins there: that is its initial offset.
    """
    if item is not None:
        return WantedOffset(item.offset, "end of the checkpoint's newest complete batch", pin)
    if pin is not None:
        return WantedOffset(pin.offset, "not read: pinned initial offset", pin)
    if group is not None and group.offset is not None and metadata_of(group) is None:
        return WantedOffset(group.offset, "not read: set by another program")
    # The pin is a deleted topic's.
    return WantedOffset(log.beginning, "not read: beginning of the recreated topic")


def _saved_wish(saved: Savepoint, partition: TopicPartition, log: PartitionLog, pin: Pin | None) -> WantedOffset:
    """Return a partition's offset in a savepoint. A partition that is not in it was unread, and starts as a new one."""
    item = saved.partitions.get(partition)
    if item is not None:
        return WantedOffset(item.offset, f"savepoint of {shown_time(saved.taken_ms)}", item.pin or pin)
    if pin is not None:
        return WantedOffset(pin.offset, "not in the savepoint: pinned initial offset", pin)
    return WantedOffset(log.beginning, "not in the savepoint: beginning of the log")
