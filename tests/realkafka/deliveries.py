"""What became of the records that a producer was given."""

from __future__ import annotations

from confluent_kafka import KafkaError, Message


class Deliveries:
    """A delivery callback that counts what the brokers have acknowledged, and keeps the errors."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.errors: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error)
