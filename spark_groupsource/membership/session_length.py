"""How long the group's coordinator keeps a member that it does not hear of.

In classic groups the member sets it (`kafka.session.timeout.ms`). Under KIP-848 the group's configuration does, else
the brokers': the main thread reads it when the query starts. Where the brokers do not allow that, it may be anything:
what protects the group goes by a short session, and what waits for another member's end goes by a long one.
"""

from __future__ import annotations

import logging

from spark_groupsource.options.client_settings import GroupProtocol
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger("spark_groupsource.membership")

# As short as groups are set that want a quick takeover. The brokers' own minimum is 45 s, unless it was changed.
_SHORT_S = 6.0


class SessionLength:
    """`learn` is called before the member starts; afterwards nothing changes, so that any thread may read."""

    def __init__(self, options: SourceOptions) -> None:
        self._group = options.group_id
        self._is_the_brokers = options.group_protocol is GroupProtocol.CONSUMER and not options.subscription.partitions
        # At least and at most this long, in seconds.
        self.shortest_s = self.longest_s = options.session_timeout_s
        if self._is_the_brokers:
            self.shortest_s = min(options.session_timeout_s, _SHORT_S)

    @property
    def is_the_brokers(self) -> bool:
        """Whether the brokers decide it."""
        return self._is_the_brokers

    def learn(self, session_s: float | None) -> None:
        """Take what the brokers have answered; None: they do not tell."""
        if session_s is not None:
            self.shortest_s = self.longest_s = session_s
            LOG.info("the group's session timeout: group=%s seconds=%g", self._group, session_s)
            return
        LOG.info(
            "the group's session timeout is not known, the right DescribeConfigs on the group shows it: group=%s"
            " taken_for=%g to %g seconds",
            self._group, self.shortest_s, self.longest_s,
        )  # fmt: skip
