"""`stop`: ask the query of a checkpoint to stop between two batches, from any machine that reaches the checkpoint.

Exit codes: see the help of `stop`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from spark_groupsource import errors
from spark_groupsource.checkpoint.stop_requests import Answer, Run, StopFiles, ask_to_stop
from spark_groupsource.cli.arguments import StopCommand
from spark_groupsource.cli.output import Output
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.errors import CommandError
from spark_groupsource.options.times import shown_time

# Seconds between two looks for the answer. With a store each look is some requests.
_STEP_S = 0.5


def stop_query(command: StopCommand, clock: Clock, output: Output, pause: Callable[[float], object]) -> None:
    """Ask all sources of the query to stop. With `wait_s`, wait until their members have left.

    Raises `CommandError` if there is no checkpoint, if no query runs with it, or if one has not left cleanly within
    `wait_s`.
    """
    files = StopFiles(command.location)
    output.step(f"looking for queries at {files.name}")
    try:
        runs = files.runs()
        if not runs:
            files.check_exists()
            raise CommandError(errors.STOP_NO_QUERY, location=files.name)
        shown = {run.name: _shown(run) for run in runs}
        for name, text in shown.items():
            files.request(name, waits=command.wait_s is not None)
            output.print_line(f"asked to stop: {text}")
        if command.wait_s is None:
            return
        answers = _answers(files, shown, Deadline(clock, command.wait_s), output, pause)
        unasked = files.sources() - len(answers)
    except ValueError as error:
        raise CommandError(errors.STOP_UNREACHABLE, location=files.name, reason=error) from None
    unclean = []
    for name, answer in answers.items():
        if answer is Answer.COMPLETE:
            output.print_line(f"has left: {shown[name]}")
        else:
            text = f"no answer within {command.wait_s:g} s" if answer is None else f"{answer.name}, {answer.value}"
            unclean.append(f"{shown[name]}: {text}")
    if unasked > 0:
        # Spark ends the query when one source has left, and the others' batch may be in flight then.
        unclean.append(f"not reached: sources of the query without option checkpointLocation: {unasked}")
    if unclean:
        raise CommandError(errors.STOP_UNCLEAN, runs="; ".join(unclean))


def _answers(
    files: StopFiles,
    shown: dict[str, str],
    deadline: Deadline,
    output: Output,
    pause: Callable[[float], object],
) -> dict[str, Answer | None]:
    """Return the answers of the runs in `shown`, a text by run, and of those that it adds.

    Guards against:
    1. A query with two sources starts. Only the first one has registered when the command asks.
    2. The second one registers, and is asked, too (`ask_to_stop`).
    3. It leaves with its batch incomplete, or not at all. The command knows the first run's answer only, and exits
       with 0.
    """
    # R78: a query that is started while this waits is not asked
    answers = _asked(files, dict.fromkeys(shown), shown, output)
    while None in answers.values() and not deadline.expired():
        left = sum(answer is not None for answer in answers.values())
        output.step(f"{left} of {len(answers)} members have left; waiting {deadline.remaining_s():.0f} s more at most")
        pause(_STEP_S)
        # A store may fail for a moment, and the query drains meanwhile. What fails for longer raises below.
        with suppress(ValueError):
            answers = _asked(files, answers, shown, output)
    registered = {run.name for run in files.runs()}
    for run, answer in answers.items():
        # A request without an answer stays: the query still stops. So does one to a run that is not there: another
        # application may have removed its file, and the run, which registers again, finds the request. And one to a run
        # that is there: the program that waits in `run_until_stopped` looks for it twice a second.
        files.forget(run, keep=answer in (None, Answer.UNKNOWN) or run in registered)
    return answers


def _asked(
    files: StopFiles, asked: dict[str, Answer | None], shown: dict[str, str], output: Output
) -> dict[str, Answer | None]:
    """Ask again, see `ask_to_stop`. Add the runs that are asked for the first time to `shown`, and print them."""
    answers = ask_to_stop(files, asked)
    late = answers.keys() - shown.keys()
    runs = {run.name: run for run in files.runs()} if late else {}
    for name in sorted(late):
        # Its file is deleted if it has ended since.
        shown[name] = _shown(runs[name]) if name in runs else f"run={name}"
        output.print_line(f"asked to stop: {shown[name]}")
    return answers


def _shown(run: Run) -> str:
    return f"group={run.group} host={run.host} pid={run.pid} started={shown_time(run.started_ms)}"
