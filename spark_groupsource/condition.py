"""What an error of the catalogue is made of: a condition, its parameters, and the exception that carries both.

Invariant: no parameter of a template ever holds the value of a sensitive option; whoever builds an error
passes values through `options.shown_value`. A `reason` comes from elsewhere: it is masked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_groupsource.masking import masked


class Retry(Enum):
    """Whether the same call may succeed later without anybody changing anything."""

    NO = "no"
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Condition:
    """One row of the catalogue: a stable id, the message template, what to do, and whether waiting may help."""

    id: str
    template: str
    advice: str
    retry: Retry = Retry.NO


class GroupKafkaError(Exception):
    """Base of every error this package raises on purpose.

    `condition` is the catalogue row; the text reads `[ID] message What to do: advice`.
    """

    def __init__(self, condition: Condition, **parameters: object) -> None:
        if isinstance(parameters.get("reason"), str):
            parameters["reason"] = masked(str(parameters["reason"]))
        self.condition = condition
        self.parameters = parameters
        message = condition.template.format(**parameters)
        advice = condition.advice.format(**parameters)
        # A reason at the message's end comes from elsewhere, with or without a full stop.
        message = message.rstrip(". ")
        super().__init__(f"[{condition.id}] {message}{'' if message.endswith('?') else '.'} What to do: {advice}")

    def __reduce__(self) -> tuple[object, ...]:
        """Spark pickles exceptions between processes: rebuild from the condition, not from the text."""
        return (_rebuild, (type(self), self.condition, self.parameters))


def _rebuild(kind: type[GroupKafkaError], condition: Condition, parameters: dict[str, object]) -> GroupKafkaError:
    return kind(condition, **parameters)
