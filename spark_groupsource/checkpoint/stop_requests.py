"""Exchange requests to stop a running query, as files beside its checkpoint.

A run is one reader process of a query. Its files are in the folder `groupkafka` of the checkpoint location, which Spark
ignores, and have the run's name:

| file | written by | meaning |
|---|---|---|
| `<run>.json` | the reader, when it starts; it removes it when it ends | the run can be asked to stop |
| `<run>.stop` | whoever asks | plan no new batch, and leave the group when the batch in flight is complete |
| `<run>.stop` with an answer | the reader, when its member has left | how the member left; whoever asked removes it |

A run's name is never used twice, so a request that came too late stops nothing (rule R78). One request for all who read
a checkpoint would need no registration, but two that ask at the same time would overwrite each other's, and a request
that a store writes late, or that is written again because of that, would stop the next start.

What a killed reader leaves behind is removed by the next one that starts with the checkpoint: its registration at once,
and requests after hours, because somebody may still wait for the answer.

Several may ask at the same time: the last one that waits for the answer removes it. Reading and writing a file again is
not one step, so a request may be lost. Whoever waits then asks again, and the reader answers again.

Works on each file system of pyarrow. On those that show a file before it is written completely, half a file counts as
none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from pyarrow import fs

from spark_groupsource.checkpoint.folder import TROUBLES, CheckpointFolder
from spark_groupsource.checkpoint.log import has_open_batch, own_sources

FOLDER = "groupkafka"
VERSION = 1
_RUN, _REQUEST = ".json", ".stop"
# A run's files, and the half of one that a writer which was killed left behind. No other file is ever removed.
_NAME = re.compile(r"([0-9a-f]{32})\.(?P<kind>json|stop)(?P<scratch>(\.[0-9a-f]{32})?\.tmp)?")
# Seconds. A file is written in milliseconds, and a request waited for at most for hours; the clock of a shared folder
# may be another one.
_KEPT_S = 6 * 3600.0


class Answer(Enum):
    """How the member of a run left the group after a request to stop."""

    COMPLETE = "the last batch is complete and committed, or there was none: the next owner repeats nothing"
    INCOMPLETE = "the batch in flight was not complete in time, or not committed: the next owner repeats it"
    FAILED = "an error had ended the member"
    UNKNOWN = "the run has ended without an answer: its process was killed, or the request came too late"


@dataclass(frozen=True, slots=True)
class Run:
    """One reader process of a query. `application` is the same for all readers of one Spark application."""

    name: str
    group: str
    host: str
    pid: int
    application: str
    started_ms: int

    @classmethod
    def here(cls, group: str, started_ms: int) -> Run:
        """Return the run of this process."""
        # Spark gives each application local directories of its own, and each reader their names.
        seed = os.environ.get("SPARK_LOCAL_DIRS", "")
        application = hashlib.sha256(seed.encode()).hexdigest()[:16]
        return cls(uuid.uuid4().hex, group, socket.gethostname(), os.getpid(), application, started_ms)

    def is_beside(self, other: Run) -> bool:
        """Return whether both are readers of one application."""
        return (self.host, self.application) == (other.host, other.application)

    def may_live_beside(self, other: Run) -> bool:
        """Return whether `other` may be a second source of the same query, which runs now.

        A checkpoint has one query at a time, so all its readers belong to one application.
        """
        return self.is_beside(other) and self.pid != other.pid and _runs(other.pid)


class StopFiles:
    """The files of one checkpoint location. Every method but the constructor does I/O.

    Raises ValueError, with a text for users, if the location cannot be read or written. One thread at a time.
    """

    def __init__(self, location: str) -> None:
        self._folder = CheckpointFolder(location)

    @property
    def name(self) -> str:
        """The location, without secrets."""
        return self._folder.name

    # --- the reader

    def register(self, run: Run) -> None:
        """Make the run known. Removes the files of runs that have ended without doing so."""
        with self._open() as folder:
            folder.require_checkpoint()
            files = _files(folder)
            others = {other.name for other in _runs_of(folder, files) if run.may_live_beside(other)}
            for info in files:
                if _is_left_behind(info, others):
                    folder.delete(f"{FOLDER}/{info.base_name}")
            _register(folder, run)

    def register_again(self, run: Run) -> bool:
        """Make the run known again if its file is missing, and return whether it was. A deleted checkpoint stays so.

        Guards against:
        1. A second application is started with the same checkpoint by mistake. It removes the files of the first one.
        2. Spark ends one of the two.
        3. If that is the second one, nobody can ask the first one to stop any more.
        """
        with self._open() as folder:
            if folder.exists(_file(run.name, _RUN)) or not folder.exists("metadata"):
                return False
            _register(folder, run)
            return True

    def is_requested(self, run: str) -> bool:
        """Return whether the run was asked to stop, or has answered already: one request to the store.

        Guards against (rule R78):
        1. `groupkafka stop` asks a query to stop, whose reader is killed at the same moment.
        2. The query is started again with the same checkpoint. It finds the old request, and stops.
        """
        with self._open() as folder:
            # R78: a request names one run
            return folder.exists(_file(run, _REQUEST))

    def lacks_answer(self, run: str) -> bool:
        """Return whether there is a request without an answer. One that is half written is not complete yet."""
        request = self._request(run)
        return request is not None and "answer" not in request

    def answer(self, run: str, answer: Answer) -> None:
        """Answer a request: the run's member has left the group."""
        self._update(run, {"answer": answer.name})

    def unregister(self, run: str) -> None:
        """Remove the run, and its request unless somebody waits for the answer, who then removes it."""
        request = self._request(run)
        with self._open() as folder:
            folder.delete(_file(run, _RUN))
            if request is not None and not request.get("waits"):
                folder.delete(_file(run, _REQUEST))

    # --- whoever asks

    def runs(self) -> tuple[Run, ...]:
        """Return the registered runs. A reader that was killed leaves its own behind until the next one starts."""
        with self._open() as folder:
            return _runs_of(folder, _files(folder))

    def may_have_sibling(self, run: Run) -> bool:
        """Return whether another source of the run's query reads in its group now; True if that cannot be read."""
        try:
            return any(other.group == run.group and run.may_live_beside(other) for other in self.runs())
        except ValueError:
            return True

    def check_exists(self) -> None:
        """Raise ValueError if Spark has no checkpoint here."""
        with self._open() as folder:
            folder.require_checkpoint()

    def is_any_requested(self, since_ms: int) -> bool:
        """Return whether a run of this machine was asked to stop that lives and started at `since_ms` or later.

        Guards against:
        1. `groupkafka stop` asks a run whose reader is killed at the same moment. Both files stay.
        2. The query is started again, and looks for requests before its reader has removed the first file.
        3. It stops, although nobody has asked it.
        """
        with self._open() as folder:
            files = _files(folder)
            asked = {info.base_name.removesuffix(_REQUEST) for info in files if info.path.endswith(_REQUEST)}
            # R78: a request names one run
            return bool(asked) and any(
                run.name in asked and run.host == socket.gethostname() and run.started_ms >= since_ms and _runs(run.pid)
                for run in _runs_of(folder, files)
            )

    def request(self, run: str, *, waits: bool) -> None:
        """Ask the run to stop. With `waits`, the answer stays until `forget`, of each one that waits."""
        self._update(run, {"waits": _waiting(self._request(run)) + waits})

    def answer_of(self, run: str) -> Answer | None:
        """Return the run's answer; None while there is none."""
        # Before the answer is read: a run answers, and then it ends.
        with self._open() as folder:
            is_running = folder.exists(_file(run, _RUN))
        return self._answer(run) or (None if is_running else Answer.UNKNOWN)

    def forget(self, run: str, *, keep: bool = False) -> None:
        """Wait no longer. Remove the request and its answer, unless others wait, or the run has to `keep` it."""
        others = max(0, _waiting(self._request(run)) - 1)
        if others > 0 or keep:
            self._update(run, {"waits": others})
        else:
            with self._open() as folder:
                folder.delete(_file(run, _REQUEST))

    def check_query(self, query: str) -> None:
        """Raise ValueError if this is the checkpoint of a query with another id than `query`."""
        with self._open() as folder:
            text = _metadata(folder)
        if text is not None and text != query:
            raise ValueError(f"the checkpoint belongs to another query: its id is {text}, and that of this one {query}")

    def has_open_batch(self) -> bool:
        """Return whether Spark has logged a batch that is not complete."""
        with self._open() as folder:
            return has_open_batch(folder)

    def sources(self) -> int:
        """Return how many sources of this format the query has, by its newest planned batch; 0 before the first one."""
        with self._open() as folder:
            return own_sources(folder)

    # --- internals

    def _answer(self, run: str) -> Answer | None:
        return Answer.__members__.get(str((self._request(run) or {}).get("answer")))

    def _request(self, run: str) -> dict[str, Any] | None:
        with self._open() as folder:
            return _read(folder, _file(run, _REQUEST))

    def _update(self, run: str, values: dict[str, Any]) -> None:
        content = {"v": VERSION} | (self._request(run) or {}) | values
        with self._open() as folder:
            _write(folder, _file(run, _REQUEST), content)

    @contextmanager
    def _open(self) -> Iterator[CheckpointFolder]:
        """Return the checkpoint. Map errors raised inside."""
        try:
            yield self._folder
        except TROUBLES as error:
            raise ValueError(self._folder.scrubbed(error)) from None


def ask_to_stop(
    files: StopFiles, asked: Mapping[str, Answer | None], query: str | None = None
) -> dict[str, Answer | None]:
    """Ask every registered run to stop, and return the answers so far: None where the member has not left yet.

    `asked` is what the last call returned. The caller ends with `forget` for each run.

    A run that registers between two calls is asked, too, if it is of `query`, the id of a query that runs. Without
    `query`, only if it is a second source of a query that was asked: a reader of the same application was asked, and
    has not ended. Raises ValueError if the checkpoint is not that of `query`.
    """
    answers = dict(asked)
    if not answers and query is not None:
        files.check_query(query)
    runs = files.runs()
    before = [run for run in runs if run.name in answers]
    for run in runs:
        # R78: a query that is started later is not asked
        due = query is not None or not asked or any(map(run.is_beside, before))
        if due and run.name not in answers:
            files.request(run.name, waits=True)
            answers[run.name] = None
    return {name: _answer_or_ask(files, name) if answer is None else answer for name, answer in answers.items()}


def _answer_or_ask(files: StopFiles, run: str) -> Answer | None:
    """Return the run's answer. Ask again if the request is missing: another one that waited has removed it."""
    answer = files.answer_of(run)
    if answer is None and not files.is_requested(run):
        files.request(run, waits=True)
    return answer


def _waiting(request: Mapping[str, Any] | None) -> int:
    """Return how many wait for the answer to a request."""
    return int((request or {}).get("waits", 0))


def _metadata(folder: CheckpointFolder) -> str | None:
    """Return the id of the checkpoint's query; None if Spark's file has another form than that of Spark 4.

    Raises FileNotFoundError if Spark has no checkpoint here.
    """
    text = folder.text("metadata")
    try:
        return str(json.loads(text)["id"])
    except (KeyError, TypeError, ValueError):
        return None


def _file(run: str, kind: str) -> str:
    """Return the name of a run's file in the checkpoint."""
    return f"{FOLDER}/{run}{kind}"


def _register(folder: CheckpointFolder, run: Run) -> None:
    folder.create_folder(FOLDER)
    _write(folder, _file(run.name, _RUN), {"v": VERSION} | asdict(run))


def _files(folder: CheckpointFolder) -> list[fs.FileInfo]:
    try:
        return folder.listed(FOLDER)
    except FileNotFoundError:
        # Arrow looks twice at a folder that is not there, and it was made in between.
        return folder.listed(FOLDER)


def _is_left_behind(info: fs.FileInfo, living: Collection[str]) -> bool:
    """Return whether a file belongs to none of the living runs, and nobody needs it any more.

    A request stays for some hours, and half a file, too. Guards against:
    1. `groupkafka stop --wait` asks a run. The run leaves cleanly, answers, and ends.
    2. The query is started again, and its new run removes what is left of the old one, with the answer.
    3. The command says that the run has ended without an answer.
    """
    name = _NAME.fullmatch(info.base_name)
    if name is None or name[1] in living:
        return False
    if name["scratch"] or name["kind"] == "stop":
        return info.mtime_ns is not None and time.time() - info.mtime_ns / 1e9 > _KEPT_S
    return True


def _runs_of(folder: CheckpointFolder, files: Iterable[fs.FileInfo]) -> tuple[Run, ...]:
    """Return the runs that are registered in these files."""
    names = [each.name for each in fields(Run)]
    ours = (info.base_name for info in files if info.path.endswith(_RUN) and _NAME.fullmatch(info.base_name))
    found = (_read(folder, f"{FOLDER}/{name}") for name in ours)
    return tuple(Run(**{name: content[name] for name in names}) for content in found if content is not None)


def _read(folder: CheckpointFolder, name: str) -> dict[str, Any] | None:
    """Return a file's object; None if it is missing, half written, or of a newer version."""
    try:
        content = json.loads(folder.text(name))
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("v") == VERSION else None


def _write(folder: CheckpointFolder, name: str, content: dict[str, Any]) -> None:
    folder.write(name, json.dumps(content, sort_keys=True).encode())


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
