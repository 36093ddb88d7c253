"""`timeline`: draw a group's life from the metrics files of its queries."""

from __future__ import annotations

from spark_groupsource import errors
from spark_groupsource.cli.arguments import TimelineCommand
from spark_groupsource.cli.output import Output
from spark_groupsource.errors import CommandError, file_errors
from spark_groupsource.metrics import is_metrics_file
from spark_groupsource.timeline.events import timeline_of
from spark_groupsource.timeline.files import read_files
from spark_groupsource.timeline.page import page_of


def write_timeline(command: TimelineCommand, output: Output) -> None:
    """Write the page and print its figures. Raises `CommandError`."""
    if is_metrics_file(command.output):
        # A forgotten -o: the shell's expansion ends with one of the inputs.
        raise CommandError(errors.FILE_FAILED, path=command.output, verb="written", reason="it is a metrics file")
    files = read_files(command.files, output.step)
    output.step(f"drawing {sum(len(file.lines) for file in files):,} events")
    timeline = timeline_of(files)
    page = page_of(timeline)
    with file_errors(command.output, "written"):
        # JSON can hold halves of surrogate pairs.
        command.output.write_text(page, encoding="utf-8", errors="backslashreplace")
    output.print_line(f"{timeline.title}: {timeline.subtitle}")
    output.print_line(f"written: {command.output} ({len(page) / 1e6:.1f} MB)")
