"""Provide the session timeout: how long the group's coordinator keeps a member without heartbeats.

In classic groups the member sets it (`kafka.session.timeout.ms`). Under KIP-848 the group's configuration sets it, else
the brokers': the main thread reads it when the query starts. Without the right to read it, it is not known. Then
`shortest_s` is used to protect the group, and `longest_s` to wait for the end of another member's session.
"""

from __future__ import annotations

import logging

from spark_groupsource.options.client_settings import GroupProtocol
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger(__name__)

# Seconds. A short timeout, as set for a fast takeover. The default minimum of the brokers is 45 s.
_SHORT_S = 6.0


class SessionLength:
    """Hold the bounds of the session timeout.

    `learn` is called before the member starts. Nothing changes afterwards, so any thread may read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._group = options.group_id
        # Whether the brokers set the session timeout.
        self.is_the_brokers = options.group_protocol is GroupProtocol.CONSUMER and not options.subscription.partitions
        # The bounds of the session timeout, in seconds.
        self.shortest_s = self.longest_s = options.session_timeout_s
        if self.is_the_brokers:
            self.shortest_s = _SHORT_S

    def learn(self, session_s: float | None) -> None:
        """Store the session timeout that the brokers reported, in seconds; None if they did not report it."""
        if session_s is not None:
            self.shortest_s = self.longest_s = session_s
            LOG.info("the group's session timeout: group=%s seconds=%g", self._group, session_s)
            return
        LOG.info(
            "the group's session timeout is not known (no right DescribeConfigs on the group, or a broker that does not"
            " report it): group=%s assumed_seconds=%g to %g",
            self._group, self.shortest_s, self.longest_s,
        )  # fmt: skip
