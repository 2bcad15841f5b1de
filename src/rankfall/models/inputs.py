"""Protocols of the input of models. Any object with these attributes can be passed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class RequestFeatures(Protocol):
    """Features of requests, without candidates. Ids are int32 or int64: 0 is missing or padding, 1 is unknown."""

    @property
    def user(self) -> Mapping[str, Tensor]:
        """Features by name, ``(B,)``, or ``(B, size)`` for vectors."""

    @property
    def context(self) -> Mapping[str, Tensor]:
        """Features by name, ``(B,)``, or ``(B, size)`` for vectors."""

    @property
    def sequences(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Ids ``(B, L)`` by the names of the sequence and of the feature."""

    @property
    def sequence_mask(self) -> Mapping[str, Tensor]:
        """Boolean tensors ``(B, L)`` by the name of the sequence, True for real events."""


class ImpressionFeatures(RequestFeatures, Protocol):
    """The features of a batch of impressions: requests and their candidates."""

    @property
    def items(self) -> Mapping[str, Tensor]:
        """Features of the candidates by name, ``(B, N)``, or ``(B, N, size)`` for vectors."""

    @property
    def mask(self) -> Tensor:
        """Boolean tensor ``(B, N)``, True for real candidates."""
