"""Results as frozen dataclasses with one JSON form each.

The JSON form has the fields of a class as keys, in the order of the class. NaN is written as null. A field whose
default is None is left out while it is None.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Measurement(Result):
...     value: Number
...     note: str | None = None
>>> Measurement(math.nan).to_json()
{'value': None}
>>> Measurement.from_json({"value": 0.5})
Measurement(value=0.5, note=None)
"""

from __future__ import annotations

import json
import math
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from rankfall._files import write_file
from rankfall._json_reader import read_json_file
from rankfall._tables import Tables, draws
from rankfall._yaml_config import explain

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

__all__ = ["Number", "Result", "ResultError", "Tables", "draws"]

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]  # NaN is null in JSON


class ResultError(ValueError):
    """A file or a dictionary that does not have the form of the result that is read from it."""


class Result:
    """Base of all results: conversion from and to their JSON form."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as dictionaries, lists, strings and numbers."""
        content: dict[str, Any] = _to_json(self)
        return content

    @classmethod
    def from_json(cls, content: Any, *, where: str = "") -> Self:
        """Build the result from its JSON form.

        Args:
            content: what :meth:`to_json` returns.
            where: name of the source for error messages, such as the path of a file.

        Raises:
            ResultError: a field is missing or has a wrong type; the message names it.
        """
        try:
            result: Self = _adapter(cast("Hashable", cls)).validate_python(content)
        except ValidationError as error:
            raise ResultError(explain(error, where or cls.__name__)) from None
        return result

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the result from a file.

        Raises:
            ResultError: the file is damaged, or a field is missing or wrong.
        """
        try:
            content = read_json_file(path)
        except ValueError:
            raise ResultError(f"{path} is damaged: it is not JSON") from None
        return cls.from_json(content, where=str(path))

    def save(self, path: Path, *, indent: int = 2) -> None:
        """Write the result to a file, atomically."""
        write_file(path, json.dumps(self.to_json(), indent=indent, allow_nan=False) + "\n")


@cache
def _adapter(cls: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("type", cls))


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        pairs = ((one, getattr(value, one.name)) for one in fields(value))
        return {one.name: _to_json(content) for one, content in pairs if not _is_left_out(one, content)}
    if isinstance(value, dict):
        return {key: _to_json(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(content) for content in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _is_left_out(one: Field[Any], content: Any) -> bool:
    return content is None and one.default is None
