"""What a fault leaves to write down."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that is over. `clean` says that it takes nothing from a member without a handover."""

    target: str
    clean: bool
    details: dict[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.time)
