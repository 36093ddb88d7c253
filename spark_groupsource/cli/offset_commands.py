"""`reset`, `savepoint` and `adopt`: read group and cluster, plan with `offset_moves`, print, and commit on request.

The clients' own deadlines limit every wait.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping

from spark_groupsource import errors
from spark_groupsource.cli.admin import GroupAdmin
from spark_groupsource.cli.adopt_origins import Origin, check_held, chosen_topics, wishes_of
from spark_groupsource.cli.arguments import AdoptCommand, ResetCommand, SavepointCommand, TargetKind, shown_time
from spark_groupsource.cli.offset_moves import (
    Log,
    Move,
    Wish,
    by_topic,
    commit_item,
    names,
    next_reset,
    pin_of,
    plan_move,
    table,
    warnings,
)
from spark_groupsource.cli.savepoint_file import Saved, Savepoint, read_savepoint, write_savepoint
from spark_groupsource.clock import Clock
from spark_groupsource.cluster.port import ClusterPort, Edge, TopicInfo
from spark_groupsource.errors import CommandError, KafkaUnavailableError
from spark_groupsource.model.commit_metadata import GroupOffset, KnownTopics, Pin, parse_metadata
from spark_groupsource.model.offsets import TopicPartition, same_topic

# Such a query is no member, and its next commit would override the new offsets.
UNSEEN_QUERIES = "queries with option assign cannot be detected: make sure that they are stopped"

Say = Callable[[str], object]
Groups = Mapping[TopicPartition, GroupOffset]


class Commands:
    """Runs commands on one group. `say` prints output, `warn` prints warnings."""

    def __init__(self, admin: GroupAdmin, cluster: ClusterPort, clock: Clock, say: Say, warn: Say) -> None:
        self._admin = admin
        self._cluster = cluster
        self._clock = clock
        self._say = say
        self._warn = warn

    # --- savepoint

    def savepoint(self, command: SavepointCommand) -> None:
        """Write the group's offsets to a file. Raises errors of the catalogue."""
        groups = self._admin.offsets()
        if not groups:
            raise _unknown(command)
        described = self._described(groups, (), command.connection.group)
        kept: dict[TopicPartition, Saved] = {}
        for partition in by_topic(groups, described):
            topic_id, group = described[partition.topic].topic_id, groups[partition]
            pin = pin_of(group, topic_id)
            if group.offset is None or (pin is None and _is_ours(group)):
                self._say(f"left out: {partition}, whose offset belongs to a deleted topic of that name")
                continue
            kept[partition] = Saved(group.offset, pin)
        topics = {partition.topic for partition in kept}
        ids = {topic: described[topic].topic_id for topic in topics}
        taken_ms = int(self._clock.epoch_s() * 1000)
        savepoint = Savepoint(self._admin.cluster_id(), command.connection.group, taken_ms, ids, kept)
        write_savepoint(command.path, savepoint)
        self._say(
            f"{len(kept)} partitions of {len(topics)} topics saved in {command.path}, as of {shown_time(taken_ms)}"
        )

    # --- reset

    def reset(self, command: ResetCommand) -> None:
        """Print the moves, and commit them with `execute`. Raises errors of the catalogue.

        Steps: 1. the savepoint, 2. no members, 3. the group's offsets, 4. the topics, 5. the moves, 6. one commit.
        """
        group = command.connection.group
        saved = self._saved(command) if command.target.kind is TargetKind.SAVEPOINT else None
        self._refuse_members(group)
        groups = self._admin.offsets()
        # A savepoint can also restore a group that the broker has deleted.
        known = [*groups, *(saved.partitions if saved is not None else ())]
        if not known:
            raise _unknown(command)
        described = self._described(known, command.topics, group)
        if saved is not None:
            _refuse_topics_made_anew(command, saved, described)
        logs = self._logs(_partitions(command.target.kind, known, described), described)
        if not logs:
            raise CommandError(errors.NO_INITIAL_OFFSET, partitions=f"topic {', '.join(described)}")
        wishes = self._wishes(command, groups, logs, saved)
        moves = [plan_move(partition, groups.get(partition), logs[partition], wishes[partition]) for partition in logs]
        if self._show(moves, command.execute):
            self._commit(group, moves, groups, logs, wishes)
            self._say(f"\nGroup {group}: {len(moves)} offsets committed. Queries that start from now on use them.")

    # --- adopt

    def adopt(self, command: AdoptCommand, origin: Origin) -> None:
        """Print the offsets to adopt, and commit them with `execute`. Raises errors of the catalogue.

        Steps: 1. no members, 2. the topics, 3. the wanted offsets, 4. no other offsets in the group, 5. the moves,
        6. one commit.
        """
        group = command.connection.group
        self._refuse_members(group)
        described = self._described(origin.positions, chosen_topics(origin, command.topics), group)
        logs = self._logs(_partitions(None, (), described), described)
        groups = self._admin.offsets()
        wishes = wishes_of(origin, logs, described)
        if not command.overwrite:
            check_held(group, groups, wishes)
        moves = [plan_move(partition, groups.get(partition), logs[partition], wishes[partition]) for partition in logs]
        for note in origin.notes:
            self._say(note)
        if self._show(moves, command.execute):
            self._commit(group, moves, groups, logs, wishes)
            self._say(
                f"\nGroup {group}: {len(moves)} offsets committed. Start its queries with kafka.group.id={group}, and"
                " each with a new checkpointLocation."
            )

    # --- helpers

    def _show(self, moves: list[Move], execute: bool) -> bool:
        """Print the moves; return whether to commit them."""
        self._say(table(moves))
        for line in warnings(moves):
            self._say(line)
        if not execute:
            self._say("\nDry run: nothing was changed. Add --execute to commit the new offsets.")
        return execute

    def _refuse_members(self, group: str) -> None:
        members = self._admin.members()
        if members:
            raise CommandError(errors.GROUP_HAS_MEMBERS, group=group, members=", ".join(members))
        if self._admin.is_simple():
            self._warn(UNSEEN_QUERIES)

    def _described(self, known: Iterable[TopicPartition], wanted: tuple[str, ...], group: str) -> dict[str, TopicInfo]:
        """Return the topics to work on. Deleted topics are left out; if the user named one, it is an error."""
        chosen = wanted or tuple(sorted({partition.topic for partition in known}))
        missing = self._cluster.missing_topics(chosen)
        gone = [topic for topic in chosen if topic in missing]
        if gone and (wanted or len(gone) == len(chosen)):
            raise CommandError(errors.COMMAND_TOPIC_UNKNOWN, topics=", ".join(gone), group=group)
        for topic in gone:
            self._say(f"left out: topic {topic}, which no longer exists")
        return self._cluster.describe(topic for topic in chosen if topic not in missing)

    def _saved(self, command: ResetCommand) -> Savepoint:
        path, group = command.target.path, command.connection.group
        savepoint = read_savepoint(path)
        if savepoint.group != group:
            reason = f"it belongs to group '{savepoint.group}', not to '{group}'"
            raise CommandError(errors.SAVEPOINT_MISMATCH, path=path, reason=reason)
        cluster = self._admin.cluster_id()
        if savepoint.cluster != cluster:
            reason = f"it belongs to cluster {savepoint.cluster}, but this is {cluster}"
            raise CommandError(errors.SAVEPOINT_MISMATCH, path=path, reason=reason)
        return savepoint

    def _logs(self, partitions: list[TopicPartition], described: Mapping[str, TopicInfo]) -> dict[TopicPartition, Log]:
        there = [p for p in partitions if p.partition < described[p.topic].partition_count]
        beginnings = self._cluster.log_offsets(dict.fromkeys(there, Edge.EARLIEST))
        # With open transactions: a group that reads uncommitted records may be there.
        ends = self._cluster.log_offsets(dict.fromkeys(there, Edge.LATEST), uncommitted=True)
        logs = {}
        for partition in there:
            info, beginning, end = described[partition.topic], beginnings[partition], ends[partition]
            if beginning is not None and end is not None:
                logs[partition] = Log(info.topic_id, info.partition_count, beginning.offset, end.offset)
        return logs

    def _wishes(
        self,
        command: ResetCommand,
        groups: Groups,
        logs: Mapping[TopicPartition, Log],
        saved: Savepoint | None,
    ) -> dict[TopicPartition, Wish]:
        pins = {partition: pin_of(groups.get(partition), log.topic_id) for partition, log in logs.items()}
        match command.target.kind:
            case TargetKind.EARLIEST:
                return {p: Wish(log.beginning, "beginning of the log", pins[p]) for p, log in logs.items()}
            case TargetKind.LATEST:
                return {p: Wish(log.end, "end of the log", pins[p]) for p, log in logs.items()}
            case TargetKind.TIME:
                return self._wishes_at(command.target.time_ms, logs, pins)
            case TargetKind.SAVEPOINT if saved is not None:
                return {p: _saved_wish(saved, p, log, pins[p]) for p, log in logs.items()}
        missing = [partition for partition, pin in pins.items() if pin is None]
        if missing:
            raise CommandError(errors.NO_INITIAL_OFFSET, partitions=names(missing))
        return {p: Wish(pin.offset, "pinned initial offset", pin) for p, pin in pins.items() if pin is not None}

    def _wishes_at(
        self, time_ms: int, logs: Mapping[TopicPartition, Log], pins: Mapping[TopicPartition, Pin | None]
    ) -> dict[TopicPartition, Wish]:
        wanted: dict[TopicPartition, Edge | int] = dict.fromkeys(logs, time_ms)
        # Like the ends, with open transactions: without them, a time in an open transaction would resolve to the log's
        # end, and its records would be skipped.
        found = self._cluster.log_offsets(wanted, uncommitted=True)
        wishes = {}
        for partition, log in logs.items():
            first = found.get(partition)
            if first is None:
                why = f"no record at or after {shown_time(time_ms)}: end of the log"
                wishes[partition] = Wish(log.end, why, pins[partition])
            else:
                why = f"first record at or after {shown_time(time_ms)}"
                wishes[partition] = Wish(first.offset, why, pins[partition])
        return wishes

    def _commit(
        self,
        group: str,
        moves: list[Move],
        groups: Groups,
        logs: Mapping[TopicPartition, Log],
        wishes: Mapping[TopicPartition, Wish],
    ) -> None:
        reset = next_reset(groups.values(), int(self._clock.epoch_s() * 1000), str(uuid.uuid4()))
        ids = dict.fromkeys((partition.topic for partition in groups), "")
        known_topics = KnownTopics.of(ids | {partition.topic: log.topic_id for partition, log in logs.items()})
        items = []
        for move in moves:
            log = logs[move.partition]
            # No query of this source has read the partition yet: this is its initial position.
            pin = wishes[move.partition].pin or Pin(move.new, log.partition_count, known_topics)
            items.append(commit_item(move, pin, log.topic_id, reset))
        try:
            self._admin.commit(items)
        except KafkaUnavailableError as error:
            reason = error.condition.template.format(**error.parameters)
            raise KafkaUnavailableError(errors.COMMIT_UNANSWERED, group=group, reason=reason) from None
        except KeyboardInterrupt:
            self._warn(f"the commit was interrupted and may have succeeded: check the offsets of group {group}")
            raise


def _unknown(command: ResetCommand | SavepointCommand) -> CommandError:
    connection = command.connection
    return CommandError(errors.GROUP_UNKNOWN, group=connection.group, servers=connection.bootstrap_servers)


def _refuse_topics_made_anew(command: ResetCommand, saved: Savepoint, described: Mapping[str, TopicInfo]) -> None:
    """Raise `CommandError` if a topic was recreated: the deleted topic's offsets would skip the new one's records."""
    ids = saved.topic_ids
    anew = [topic for topic, info in described.items() if not same_topic(ids.get(topic, info.topic_id), info.topic_id)]
    if anew:
        reason = f"topic {', '.join(sorted(anew))} was deleted and recreated since"
        raise CommandError(errors.SAVEPOINT_MISMATCH, path=command.target.path, reason=reason)


def _partitions(
    kind: TargetKind | None, known: Iterable[TopicPartition], described: Mapping[str, TopicInfo]
) -> list[TopicPartition]:
    """Return the partitions to move: all existing ones.

    For the initial offsets and savepoints, only partitions that the group or the savepoint has: the others have not
    been read, and start as they would have then.
    """
    if kind in (TargetKind.INITIAL, TargetKind.SAVEPOINT):
        return by_topic(set(known), described)
    return [
        TopicPartition(topic, number)
        for topic, info in sorted(described.items())
        for number in range(info.partition_count)
    ]


def _is_ours(group: GroupOffset) -> bool:
    """Return whether this source wrote the offset, for any topic of that name."""
    return parse_metadata(group.metadata) is not None


def _saved_wish(saved: Savepoint, partition: TopicPartition, log: Log, pin: Pin | None) -> Wish:
    """Return a partition's offset in a savepoint. A partition that is not in it was unread, and starts as a new one."""
    item = saved.partitions.get(partition)
    if item is not None:
        return Wish(item.offset, f"savepoint of {shown_time(saved.taken_ms)}", item.pin or pin)
    if pin is not None:
        return Wish(pin.offset, "not in the savepoint: pinned initial offset", pin)
    return Wish(log.beginning, "not in the savepoint: beginning of the log")
