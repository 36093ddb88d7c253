"""Help texts of the commands, for users."""

from __future__ import annotations

ABOUT = """\
Moves, saves and adopts the committed offsets of a group of groupkafka queries. Shows the lag and the members of any
group, checks a setup for problems, and draws a group's life.
"""
RESET = """\
Moves the committed offsets of a group, so that its queries read records again or skip some.

Stop all queries of the group first; the command refuses to run while the group has members. A killed member, or one
with a kafka.group.instance.id, stays until its session timeout. Queries with option assign are not members, so the
command cannot detect them. Without --execute the command only prints the changes. The queries can keep their
checkpoints: at its next start, each query detects the reset and continues from the group's offsets. (Offsets that
another tool changed are a conflict instead, see option onConflict.)
"""
RESET_MORE = """\
targets:
  initial          the group's initial offsets: the positions to which startingOffsets was resolved at first
  earliest         the beginning of the log
  latest           the end of the log
  TIME             the first record at or after a time: ISO 8601 (2026-01-31T12:00:00Z, UTC if it names no zone),
                   -24h, -7d (units s, m, h, d, w), today, yesterday (midnight UTC), or milliseconds (not seconds)
                   since 1970
  savepoint FILE   the group's offsets in FILE, which 'savepoint' wrote
  checkpoint LOCATION
                   the end of the newest complete batch in a query's checkpointLocation, for the partitions of that
                   batch: after an old checkpoint was restored together with the sink. If the query has state: all
                   partitions, those that it has not read to their initial offset

examples:
  groupkafka reset --bootstrap-servers localhost:9092 --group orders-to-lake --to initial
  groupkafka reset --bootstrap-servers localhost:9092 --group orders-to-lake --topic orders \\
      --to 2026-01-31T12:00:00Z --execute

exit codes: 0 done, or a dry run; 1 refused; 2 wrong arguments; 130 interrupted
"""
SAVEPOINT = """\
Writes the committed offsets of a group to a file, for 'reset --to savepoint FILE'.

The group's offsets are the completed offsets of all its queries together. The queries can run meanwhile.
"""
SAVEPOINT_MORE = """\
example:
  groupkafka savepoint --bootstrap-servers localhost:9092 --group orders-to-lake friday.json

exit codes: 0 done; 1 refused; 2 wrong arguments; 130 interrupted
"""
LAG = """\
Shows the lag of a group per partition: in records, in time, and how long until retention removes the next unread
record. It works for any group of any program, with or without members, and does not join the group.

  lag        records between the group's committed offset and the log's end (with isolation.level=read_committed in
             --config: the end of the committed records), without those that the broker has lost already. As with
             Kafka's own tools, transaction markers count.
  behind     the age of the next unread record
  safe for   time until its age reaches the topic's retention.ms. Kafka may keep it longer, and removes it earlier
             only if the topic exceeds its retention.bytes

A '-' means: no unread record, its time is not known, or no retention by time. If a group has members and has not
committed anything yet, all records of the topics that they read count as unread.
"""
LAG_MORE = """\
examples:
  groupkafka lag --bootstrap-servers localhost:9092 --group orders-to-lake
  groupkafka lag --bootstrap-servers localhost:9092 --group orders-to-lake --json --watch 30
  groupkafka lag --bootstrap-servers localhost:9092 --group orders-to-lake --max-behind 600

exit codes: 0 done, also when --watch is interrupted; 1 refused; 2 wrong arguments; 3 beyond --max-lag or --max-behind
(also if the age of unread records is not known: stderr then names the partitions); 130 interrupted
"""
ADOPT = """\
Commits another query's offsets to a group, so that the group's queries continue there without a gap: the offsets of a
query of Spark's own Kafka source (format "kafka"), read from its checkpoint, or those of another consumer group.

Stop the old query first. Without --execute the command only prints the changes. Start the new query with a new
checkpoint location, and with a new folder for Spark's file sink: in the old folder the sink skips batches whose numbers
it already has. A partition that the old query has not seen starts at its beginning.
"""
ADOPT_MORE = """\
Only completed batches count: a batch in which the old query was stopped is read again. The command refuses to run while
the group has members, if the group already has offsets (unless --overwrite), and for offsets greater than the end of
their log, whose topic was recreated. The new query reports missing records (failOnDataLoss).

examples:
  groupkafka adopt --bootstrap-servers localhost:9092 --group orders-to-lake \\
      --from-checkpoint s3a://lake/checkpoints/orders
  groupkafka adopt --bootstrap-servers localhost:9092 --group orders-to-lake \\
      --from-group orders-service --topic orders --execute

exit codes: 0 done, or a dry run; 1 refused; 2 wrong arguments; 130 interrupted
"""
GROUP = """\
Shows a group as its coordinator describes it: protocol, strategy, state, members, their partitions and standby
partitions, their lag, and the data that members report to each other. It works for any group of any program, with or
without members, and does not join the group.

  strategy   the assignment strategy that the group uses; with the protocol 'consumer' (KIP-848) the broker's
  lag        records between the group's committed offset and the log's end, as in 'lag'
  metadata   data that a member reported when it joined: rack, owned partitions, and its strategy's data (weight=3).
             Needs kafka-python (the extra of groupkafka[assignors]); only for stable classic groups.
"""
GROUP_MORE = """\
examples:
  groupkafka group --bootstrap-servers localhost:9092 --group orders-to-lake
  groupkafka group --bootstrap-servers localhost:9092 --group orders-to-lake --watch 2

exit codes: 0 done, also when --watch is interrupted; 1 refused, or the group does not exist; 2 wrong arguments;
130 interrupted
"""

DOCTOR = """\
Checks a setup for common problems and prints one line per check, with the remedy. It changes nothing and joins no
group.

  here       versions, whether records are read in C, file descriptors
  brokers    whether they can be reached, their release, KIP-848, the rights on group and topics, clocks, how the
             newest batches of the topics are compressed
  checkpoint whether the source can read it from this machine, and to which query it belongs (--checkpoint-location)
  executors  the same as 'here' on each executor, their clocks, and Spark's settings (--master). The check runs with
             the Python that Spark starts for the source: set PYSPARK_PYTHON as your job does, PYSPARK_SUBMIT_ARGS
             as its arguments of spark-submit, and SPARK_HOME where no PySpark is installed.

'advice' is a possible improvement, 'skipped' a check that could not be made.

With --fix-startup it checks nothing. It puts bytecode into the archive from which Spark's Python processes import
PySpark ($SPARK_HOME/python/lib, else that of the installed PySpark), for the Python that runs the command. Every new
Python process of Spark, of any application, then starts faster. It refuses an archive of another PySpark version, or
one that it cannot write. --undo puts the original back, which is kept beside it. Both need no broker.
"""
DOCTOR_MORE = """\
examples:
  groupkafka doctor --bootstrap-servers localhost:9092 --group orders-to-lake --config client.properties
  PYSPARK_PYTHON=/opt/venv/bin/python groupkafka doctor --bootstrap-servers localhost:9092 --topic orders \\
      --master spark://spark:7077
  groupkafka doctor --fix-startup

exit codes: 0 no problem found; 1 problems found (--fix-startup: nothing changed); 2 wrong arguments; 130 interrupted
"""

EXPORTER = """\
Serves metrics of consumer groups for a Prometheus server, at http://ADDRESS:PORT/metrics: lag in offsets and in
seconds, time until retention removes unread records, members and state. The names are those of kafka-lag-exporter. It
works for any group of any program, with or without members, and does not join the groups.

All groups are measured every --interval seconds; a scrape gets the last result. A group that cannot be measured has
only the metric kafka_consumergroup_group_up with the value 0; stderr names the reason, and the exporter continues.

Needs the extra of groupkafka[metrics].
"""
EXPORTER_MORE = """\
examples:
  groupkafka exporter --bootstrap-servers localhost:9092 --group orders-to-lake --group refunds-to-lake
  groupkafka exporter --bootstrap-servers kafka:9092 --group-pattern '.*-to-lake' --config client.properties \\
      --address 0.0.0.0 --port 8000 --cluster-name production

exit codes: 0 stopped by SIGINT or SIGTERM; 1 refused (port in use, setting refused); 2 wrong arguments
"""
STOP = """\
Asks a running query to stop between two batches: its source plans no new batch, completes and commits the one in
flight, and leaves the group. A program that waits in run_until_stopped then ends the query, within 2 s. Any other
query runs on without batches: stop it, or end its application. Otherwise it fails 30 s later with MEMBER_LEFT.

The request is a file in the folder groupkafka of the checkpoint location: the command needs the right to write there,
and no broker. It reaches queries whose source has option checkpointLocation. With a store (anything but a local path)
the query sees it within 2 s.

A query that was killed is asked, too, until one starts again with the checkpoint: the command cannot know that it is
dead. Without --wait it exits with 0; with --wait it gets no answer, and exits with 1.
"""
STOP_MORE = """\
examples:
  groupkafka stop --checkpoint-location /checkpoints/orders
  groupkafka stop --checkpoint-location s3a://lake/checkpoints/orders --wait 300

exit codes: 0 asked (with --wait: every member has left, and nothing is repeated); 1 no query runs with the checkpoint,
the location cannot be read or written, or with --wait one has not left in time, or not cleanly; 2 wrong arguments;
130 interrupted
"""

TIMELINE = """\
Draws a group's life from the metrics files of its queries (option metricsPath): one HTML page that needs no network. It
has a lane per query with its batches, a lane per partition in the colour of its owner, and the lag below.

  hatched    a member wrote no event: it was killed, is cut off, or has nothing to report
  framed     a drain: the partition's handover waits for the batch in flight

Drag to zoom, double-click to zoom out, point at anything for its details, click at the legend to hide. The older part
of a file, FILE.1, is read too. The files of all queries of one group belong together: a takeover is shown between two
files, by the clocks of their machines. Needs the extra 'timeline' (plotly).
"""
TIMELINE_MORE = """\
example:
  groupkafka timeline metrics-a.json metrics-b.json -o timeline.html

exit codes: 0 done; 1 refused; 2 wrong arguments; 130 interrupted
"""
