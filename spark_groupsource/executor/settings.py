"""What an executor needs to read: frozen values that travel with the pickled reader."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_groupsource.options.model import SourceOptions


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How to read; `options` holds the client settings, secrets included, so it is never shown."""

    options: SourceOptions = field(repr=False)

    @property
    def include_headers(self) -> bool:
        """Whether rows have the column headers."""
        return self.options.include_headers

    @property
    def stall_timeout_s(self) -> float:
        """How long a range may make no progress before the task fails."""
        return self.options.poll_timeout_s
