"""What came in with a log, and what became of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class Counts:
    """What came in and what became of it; those of parts add up."""

    rows: int = 0
    requests: int = 0
    without_relevant: int = 0  # requests of which no item is relevant
    logged: Counter[str] = field(default_factory=Counter)  # rows by stage,
    kept: Counter[str] = field(default_factory=Counter)  # those that were sampled,
    short: Counter[str] = field(default_factory=Counter)  # requests with fewer than the sample asks for
    negatives: int = 0
    values: Counter[str] = field(default_factory=Counter)  # ids of each feature that were looked up,
    missing: Counter[str] = field(default_factory=Counter)  # those that were not there,
    unseen: Counter[str] = field(default_factory=Counter)  # and those that nobody knew

    def __add__(self, other: Counts) -> Counts:
        """The counts of both parts together."""
        return Counts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Counts:
        """As manifests keep it."""
        counts: dict[str, Any] = {}
        for name in cls.__slots__:
            counts[name] = Counter(content[name]) if isinstance(content[name], dict) else content[name]
        return cls(**counts)

    def to_json(self) -> dict[str, Any]:
        """As manifests keep it."""
        return {
            name: dict(value) if isinstance(value := getattr(self, name), Counter) else value for name in self.__slots__
        }
