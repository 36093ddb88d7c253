"""`stop`: ask the query of a checkpoint to stop between two batches, from any machine that reaches the checkpoint.

Exit codes: see the help of `stop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spark_groupsource import errors
from spark_groupsource.checkpoint.stop_requests import Answer, Run, StopFiles, ask_to_stop
from spark_groupsource.cli.arguments import StopCommand, shown_time
from spark_groupsource.cli.output import PrintLine
from spark_groupsource.cli.progress import ignore_step
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.errors import CommandError

# Seconds between two looks for the answer. With a store each look is some requests.
_STEP_S = 0.5


def stop_query(
    command: StopCommand,
    clock: Clock,
    *,
    print_line: PrintLine,
    pause: Callable[[float], object],
    step: PrintLine = ignore_step,
) -> None:
    """Ask all sources of the query to stop. With `wait_s`, wait until their members have left.

    Raises `CommandError` if no query runs with the checkpoint, or one has not left cleanly within `wait_s`.
    """
    files = StopFiles(command.location)
    step(f"looking for queries at {files.name}")
    try:
        runs = files.runs()
        if not runs:
            raise CommandError(errors.STOP_NO_QUERY, location=files.name)
        for run in runs:
            print_line(f"asked to stop: {_shown(run)}")
        if command.wait_s is None:
            for run in runs:
                files.request(run.name, waits=False)
            return
        for run in runs:
            files.request(run.name, waits=True)
        # R78: a query that is started while this waits is not asked
        answers = _answers(files, [run.name for run in runs], Deadline(clock, command.wait_s), pause, step)
    except ValueError as error:
        raise CommandError(errors.STOP_UNREACHABLE, location=files.name, reason=error) from None
    unclean = []
    for run in runs:
        answer = answers.get(run.name)
        if answer is Answer.COMPLETE:
            print_line(f"has left: {_shown(run)}")
        else:
            text = f"no answer within {command.wait_s:g} s" if answer is None else f"{answer.name}, {answer.value}"
            unclean.append(f"{_shown(run)}: {text}")
    if unclean:
        raise CommandError(errors.STOP_UNCLEAN, runs="; ".join(unclean))


def _answers(
    files: StopFiles,
    runs: Iterable[str],
    deadline: Deadline,
    pause: Callable[[float], object],
    step: PrintLine,
) -> dict[str, Answer | None]:
    answers = ask_to_stop(files, dict.fromkeys(runs))
    while None in answers.values() and not deadline.expired():
        left = sum(answer is not None for answer in answers.values())
        step(f"{left} of {len(answers)} members have left; waiting {deadline.remaining_s():.0f} s more at most")
        pause(_STEP_S)
        answers = ask_to_stop(files, answers)
    for run, answer in answers.items():
        # A request without an answer stays: the query still stops. So does one to a run that is not there: another
        # application may have removed its file, and the run, which registers again, finds the request.
        files.forget(run, keep=answer in (None, Answer.UNKNOWN))
    return answers


def _shown(run: Run) -> str:
    return f"group={run.group} host={run.host} pid={run.pid} started={shown_time(run.started_ms)}"
