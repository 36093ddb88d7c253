"""Look whether a query has state: whether Spark has made the folder `state` in its checkpoint.

Spark makes it while it plans the first batch of a query with a window, a join of two streams or dropDuplicates, before
it asks a source for the batch's partitions. A query without these never has it.
"""

from __future__ import annotations

import logging
import threading

from pyarrow import fs

from spark_groupsource.checkpoint.folder import TROUBLES, CheckpointFolder

LOG = logging.getLogger(__name__)

# Seconds that the query waits for a store. Then it goes on, and the answer counts when it is there.
STORE_WAIT_S = 10.0


class StateFolder:
    """The folder `state` of a checkpoint. Main thread only, apart from the thread that it runs.

    `location` is a path or a URI (see `checkpoint.location`).
    """

    def __init__(self, location: str) -> None:
        self._folder = CheckpointFolder(location)
        self._looking: threading.Thread | None = None
        self._answer: bool | None = None
        self._reported = False

    def exists(self) -> bool | None:
        """Return whether the query has state; None if that is not known: the location cannot be read, or hangs.

        Guards against:
        1. The checkpoint is in a store that does not answer.
        2. The main thread looks for the folder, and waits for minutes.
        3. The query reads nothing meanwhile, although Spark reaches the store on its own way.
        """
        found = self._look() if self._folder.is_local else self._look_for_a_while()
        if found is None and not self._reported:
            self._reported = True
            LOG.warning(
                "not known whether this query has state, because the checkpoint cannot be read: if it has, nothing"
                " notices when other queries read its partitions (onSharedState): option checkpointLocation=%s",
                self._folder.name,
            )
        return found

    def _look_for_a_while(self) -> bool | None:
        wait_s = 0.0
        if self._looking is None:
            self._answer, wait_s = None, STORE_WAIT_S
            # Daemon: the process ends without waiting for a store that hangs.
            self._looking = threading.Thread(target=self._keep, name="groupkafka-state-folder", daemon=True)
            self._looking.start()
        # Waited for once: the next batches must not be late, too.
        self._looking.join(wait_s)
        if self._looking.is_alive():
            return None
        self._looking = None
        return self._answer

    def _keep(self) -> None:
        self._answer = self._look()

    def _look(self) -> bool | None:
        try:
            state, metadata = self._folder.infos("state", "metadata")
        except TROUBLES as error:
            LOG.info("the folder state is not readable: %s", self._folder.scrubbed(error))
            return None
        if state.type != fs.FileType.NotFound:
            return True
        # Spark writes `metadata` before it starts any source: without it Spark's checkpoint is elsewhere.
        return None if metadata.type == fs.FileType.NotFound else False
