"""Reads Kafka's primitive types from the bytes of a record."""

from __future__ import annotations

import struct


class CommitLogError(Exception):
    """The log of commits could not be read, or holds what no known version of Kafka writes."""


class Fields:
    """Reads Kafka's primitive types one after another. Raises CommitLogError at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise CommitLogError(f"{len(self._data)} bytes end in the middle of a field: {self._data.hex()}")
        found, self._at = self._data[self._at : end], end
        return found

    def number(self, kind: str) -> int:
        """Read a number: "h" of 2 bytes, "i" of 4, "q" of 8."""
        value: int = struct.unpack(f">{kind}", self._take(struct.calcsize(kind)))[0]
        return value

    def varint(self) -> int:
        """Read an unsigned number of 7 bits a byte, the lowest first."""
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text(self, compact: bool = False) -> str:
        """Read a string."""
        return self._take(self.varint() - 1 if compact else self.number("h")).decode()

    def optional(self, compact: bool = False) -> str | None:
        """Read a string that may be null."""
        length = self.varint() - 1 if compact else self.number("h")
        return None if length < 0 else self._take(length).decode()

    def blob(self, compact: bool = False) -> bytes:
        """Read bytes that may be null; b"" then."""
        length = self.varint() - 1 if compact else self.number("i")
        return b"" if length < 0 else self._take(length)

    def count(self, compact: bool = False) -> int:
        """Read how many items an array has; 0 for null."""
        return max(0, self.varint() - 1 if compact else self.number("i"))

    def raw(self, length: int) -> bytes:
        """Read this many bytes."""
        return self._take(length)

    def skip_tags(self) -> None:
        """Pass over the tagged fields at the end of a structure."""
        for _ in range(self.varint()):
            self.varint()
            self._take(self.varint())
