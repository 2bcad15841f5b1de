"""What models ask of a batch of impressions. Any object with these attributes will do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class Request(Protocol):
    """All of a batch but its candidates. Ids are int32 or int64: 0 is missing or padding, 1 never seen."""

    @property
    def user(self) -> Mapping[str, Tensor]:
        """Features by name, ``(B,)`` or, of vectors, ``(B, size)``."""

    @property
    def context(self) -> Mapping[str, Tensor]:
        """Features by name, ``(B,)`` or, of vectors, ``(B, size)``."""

    @property
    def sequences(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Ids ``(B, L)`` by the names of the sequence and of the feature."""

    @property
    def sequence_mask(self) -> Mapping[str, Tensor]:
        """By the name of the sequence which events are real, bool ``(B, L)``."""


class Batch(Request, Protocol):
    """Impressions: requests and their candidates."""

    @property
    def items(self) -> Mapping[str, Tensor]:
        """Features of the candidates by name, ``(B, N)`` or, of vectors, ``(B, N, size)``."""

    @property
    def mask(self) -> Tensor:
        """Which candidates are real, bool ``(B, N)``."""
