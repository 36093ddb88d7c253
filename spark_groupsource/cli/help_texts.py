"""What --help says of the commands. For users."""

from __future__ import annotations

ABOUT = """\
Moves, saves and takes over the committed offsets of a group of groupkafka queries. Shows how far any group is behind,
who its members are, and what is wrong with a setup.
"""
RESET = """\
Moves the committed offsets of a group, so that its queries read records again, or leave some out.

Stop all queries of the group first; it is refused while the group has members. A member that was killed, or that has a
kafka.group.instance.id, stays until its session timeout. (Queries with option assign are no members, and are not seen.)
Without --execute nothing is changed: the command prints what it would do. The queries may keep their checkpoints: each
one that starts afterwards notices the reset, drops what its checkpoint has of these partitions, and goes on from the
group's offsets. (Offsets moved by another tool are a conflict instead, which option onConflict decides.)
"""
RESET_MORE = """\
targets:
  initial          where the group began: the positions that startingOffsets gave when they were first looked up
  earliest         the beginning of the log
  latest           the end of the log
  TIME             the first record at or after a time: ISO 8601 (2026-01-31T12:00:00Z, UTC if it names no zone) or
                   milliseconds (not seconds) since 1970
  savepoint FILE   where the group was when FILE was written by 'savepoint'

examples:
  python -m spark_groupsource reset --bootstrap-servers localhost:9092 --group orders-to-lake --to initial
  python -m spark_groupsource reset --bootstrap-servers localhost:9092 --group orders-to-lake --topic orders \\
      --to 2026-01-31T12:00:00Z --execute

exit codes: 0 done, or a dry run; 1 refused; 2 wrong arguments; 130 interrupted
"""
SAVEPOINT = """\
Writes the committed offsets of a group to a file, for 'reset --to savepoint FILE'.

The group's offsets are what its queries have completed, all together. The queries may go on while it is written.
"""
SAVEPOINT_MORE = """\
example:
  python -m spark_groupsource savepoint --bootstrap-servers localhost:9092 --group orders-to-lake friday.json

exit codes: 0 done; 1 refused; 2 wrong arguments; 130 interrupted
"""
LAG = """\
Shows how far a group is behind, per partition: in records, in time, and how long until retention removes the next
unread record. It works for any group, of any program, with members or without, and joins none.

  lag        records between the group's committed offset and the log's end (with isolation.level=read_committed in
             --config: the end of what is committed). As with Kafka's own tools, transaction markers count.
  behind     the age of the next unread record
  safe for   until its age reaches the topic's retention.ms; Kafka may keep it longer, never less, unless the topic is
             larger than its retention.bytes

A '-' stands where there is no unread record, where its time is not known, or where nothing is removed by time. Of a
group that has members and has committed nothing yet, all records of the topics that they read count as unread.
"""
LAG_MORE = """\
examples:
  python -m spark_groupsource lag --bootstrap-servers localhost:9092 --group orders-to-lake
  python -m spark_groupsource lag --bootstrap-servers localhost:9092 --group orders-to-lake --json --watch 30
  python -m spark_groupsource lag --bootstrap-servers localhost:9092 --group orders-to-lake --max-behind 600

exit codes: 0 done, also when --watch is interrupted; 1 refused; 2 wrong arguments; 3 beyond --max-lag or --max-behind
(also when there are unread records, but their age is not known: stderr then names the partitions); 130 interrupted
"""
ADOPT = """\
Gives a group the offsets that another query has got to, so that its queries go on there without a gap: those of a
query of Spark's own Kafka source (format "kafka"), read from its checkpoint, or those of another consumer group.

Stop the old query first. Without --execute nothing is changed: the command prints what it would do. Start the new
query with a new checkpoint location (and Spark's file sink with a new folder: in the old one it takes the batches of a
new checkpoint for those that it has). A partition that the old query has not seen starts at its beginning.
"""
ADOPT_MORE = """\
The checkpoint says what is complete: a batch that the old query was stopped in is read again. It is refused while the
group has members, when it has offsets already (unless --overwrite), and for offsets behind the end of their log, whose
topic was deleted and recreated. Records that are missing are reported by the new query (failOnDataLoss).

examples:
  python -m spark_groupsource adopt --bootstrap-servers localhost:9092 --group orders-to-lake \\
      --from-checkpoint s3a://lake/checkpoints/orders
  python -m spark_groupsource adopt --bootstrap-servers localhost:9092 --group orders-to-lake \\
      --from-group orders-service --topic orders --execute

exit codes: 0 done, or a dry run; 1 refused; 2 wrong arguments; 130 interrupted
"""
GROUP = """\
Shows a group as its coordinator has it: protocol, strategy, state, members, who has which partition, who stands by, how
far each is behind, and what the members report to each other. It works for any group, of any program, with members or
without, and joins none.

  strategy   the assignment strategy that the group has agreed on; with the protocol 'consumer' (KIP-848) the broker's
  lag        records between the group's committed offset and the log's end, as in 'lag'
  metadata   what a member reported when it joined: rack, what it had then, and what its strategy adds (weight=3). It
             takes kafka-python (the extra of groupkafka[assignors]), and is shown of stable classic groups only.
"""
GROUP_MORE = """\
examples:
  python -m spark_groupsource group --bootstrap-servers localhost:9092 --group orders-to-lake
  python -m spark_groupsource group --bootstrap-servers localhost:9092 --group orders-to-lake --watch 2

exit codes: 0 done, also when --watch is interrupted; 1 refused, or there is no such group; 2 wrong arguments;
130 interrupted
"""

DOCTOR = """\
Checks what goes wrong in practice and prints a line for each check, with the cure. It changes nothing and joins no
group.

  here       versions, whether records are read in C, descriptors
  brokers    whether they can be reached, their release, KIP-848, the rights on group and topics, clocks
  checkpoint whether the source can read it from this machine, and whose it is (--checkpoint-location)
  executors  the same as here, on each of them, their clocks, and Spark's settings (--master). They are asked with the
             Python that Spark starts for the source: set PYSPARK_PYTHON as your job does.

'advice' is what could be better, 'skipped' what cannot be seen.
"""
DOCTOR_MORE = """\
examples:
  groupkafka doctor --bootstrap-servers localhost:9092 --group orders-to-lake --config client.properties
  PYSPARK_PYTHON=/opt/venv/bin/python groupkafka doctor --bootstrap-servers localhost:9092 --topic orders \\
      --master spark://spark:7077

exit codes: 0 nothing is wrong; 1 something is; 2 wrong arguments; 130 interrupted
"""
