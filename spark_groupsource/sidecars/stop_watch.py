"""Watch for requests to stop the query, on a thread of its own, and answer them.

A request is a file in the checkpoint location (`checkpoint.stop_requests`): it reaches the reader process of any query
from any place, and needs neither its process id nor a connection to it. The thread asks the member to leave after the
batch in flight, and answers when the member has left. A store that hangs delays the answer, and no batch.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

from spark_groupsource.checkpoint.stop_requests import Answer, Run, StopFiles
from spark_groupsource.membership.completion import end_process_without
from spark_groupsource.membership.stopping import StopCause
from spark_groupsource.membership.thread import MembershipThread

LOG = logging.getLogger(__name__)

# Seconds between two looks at a local checkpoint: a look is one system call.
LOCAL_INTERVAL_S = 0.1
# Seconds between two looks at a store: each look is a request, about 43,000 a day.
STORE_INTERVAL_S = 2.0
# Seconds between two tries to register with a store that does not answer.
_RETRY_S = 5.0
# Seconds that the end of the process waits for the last answer. Spark's runner allows 15 s for the whole stop.
_FINISH_S = 3.0
_DRAIN_STEP_S = 0.05
# Looks between two checks that the run is still known.
_LOOKS = 15


class StopWatch:
    """Watch for requests to stop this run. `start` and `finish` on the main thread; `requested` on any."""

    def __init__(self, files: StopFiles, run: Run, member: MembershipThread, interval_s: float) -> None:
        self._files = files
        self._run = run
        self._member = member
        self._interval_s = interval_s
        self._registered = False
        self._looks = 0
        self._answered = False
        self._in_trouble = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="groupkafka-stop-requests", daemon=True)
        # Whether a request was seen.
        self.requested = False
        # Whether Spark runs no logged batch again that the member does not know of. The session sets it.
        self.caught_up = False

    def start(self) -> None:
        """Start the thread, once."""
        if self._thread.ident is None:
            self._thread.start()

    def finish(self) -> None:
        """Answer what is still open, and remove the run. Call it when the member has ended; it waits some seconds."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(_FINISH_S)
            if self._thread.is_alive():
                atexit.register(end_process_without, self._thread)

    # --- the thread

    def _watch(self) -> None:
        pause_s = 0.0
        while not self._ending.wait(pause_s):
            self._try(self._look if self._registered else self._register)
            if not self._registered:
                pause_s = _RETRY_S
            else:
                drains = self.requested and not self._answered
                pause_s = min(self._interval_s, _DRAIN_STEP_S) if drains else self._interval_s
        if self._registered:
            self._try(self._look)
            self._try(lambda: self._files.unregister(self._run.name))

    def _register(self) -> None:
        self._files.register(self._run)
        self._registered = True

    def _look(self) -> None:
        if not self.requested:
            if not self._files.is_requested(self._run.name):
                self._stay_known()
                return
            LOG.info("a stop was requested, no further batch is planned: group=%s", self._run.group)
            self.requested = True
            self._member.request_stop(StopCause.REQUEST)
        if self._member.join(0.0):
            # Also after an answer: another one may have asked meanwhile, and its request has none.
            if self._files.lacks_answer(self._run.name):
                self._files.answer(self._run.name, self._how())
            self._answered = True

    def _stay_known(self) -> None:
        """Register again, every few looks, if the run's file was removed."""
        self._looks += 1
        if self._looks % _LOOKS == 0 and not self._ending.is_set() and self._files.register_again(self._run):
            LOG.warning(
                "the file of this query in the folder groupkafka of its checkpoint was removed, and is written again;"
                " another query may have been started with the checkpoint: option checkpointLocation=%s",
                self._files.name,
            )

    def _how(self) -> Answer:
        """Return how the member has left.

        Guards against (rule R86):
        1. A query ends inside a batch: Spark has logged it, and it is not complete.
        2. The query starts again. Somebody asks it to stop before the batch is planned again.
        3. The member has read nothing, so it leaves cleanly. `groupkafka stop --wait` reports no repeat, but the next
           owner repeats the batch.
        """
        if self._member.failed:
            return Answer.FAILED
        # R86: a logged batch that the member does not know of is repeated
        clean = self._member.left_clean and (self.caught_up or not self._files.has_open_batch())
        return Answer.COMPLETE if clean else Answer.INCOMPLETE

    def _try(self, step: Callable[[], None]) -> None:
        """Take a step. An error is logged once until it is over: a query does not fail for it."""
        try:
            step()
        except ValueError as error:
            if not self._in_trouble:
                self._in_trouble = True
                LOG.warning(
                    "requests to stop do not reach this query: option checkpointLocation=%s error=%s",
                    self._files.name, error,
                )  # fmt: skip
            return
        self._in_trouble = False
