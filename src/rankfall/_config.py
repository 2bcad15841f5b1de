"""Validated sections of YAML configurations with their error messages, and results that are stored as JSON."""

from __future__ import annotations

import copy
import inspect
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias, cast

import yaml
from docstring_parser import DocstringStyle, parse
from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError, model_validator

from rankfall._errors import RankfallError, did_you_mean
from rankfall._yaml_reader import MAX_BYTES, MAX_DEPTH, MAX_VALUES, read_values, write_values
from rankfall.storage.files import read_json_file, write_file

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema, ErrorDetails


ConfigLike: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | BaseModel
"""A configuration: the path of a YAML file, a mapping with its content, or the validated model."""

MAX_ERRORS = 50  # that a message lists
MAX_COUNT = 2**31 - 1  # of items, epochs and everything else that is counted
KIND = "kind "  # prefix of the tags of unions that are discriminated by their key `kind`


class ConfigError(RankfallError):
    """An invalid configuration. The message names every wrong key."""


class OptionError(RankfallError):
    """A wrong option inside a section; `keys` is its key, part by part."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys

    def inside(self, key: str) -> OptionError:
        """Return the same error for a section that is itself under a key."""
        return OptionError(str(self), key, *self.keys)


class Section(BaseModel):
    """Base class of the sections of a configuration: only known keys, with exactly the declared types.

    The part `Attributes` of the doc string of a section describes its keys, also in the JSON schema.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown_keys(cls, content: object) -> object:
        if isinstance(content, dict) and cls.model_config["extra"] == "forbid":
            for key in content:
                if key not in cls.model_fields:
                    allowed = list(cls.model_fields)
                    raise RankfallError(
                        f"unknown key {shown(key)}{did_you_mean(key, allowed)}; allowed are {', '.join(allowed)}"
                    )
        return content

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        schema["description"] = inspect.cleandoc(cls.__doc__ or "").partition("\n\nAttributes:\n")[0]
        for base in reversed(cls.__mro__[: cls.__mro__.index(Section)]):
            for one in parse(base.__doc__ or "", DocstringStyle.GOOGLE).params:
                if one.arg_name in schema["properties"]:
                    schema["properties"][one.arg_name]["description"] = " ".join((one.description or "").split())
        return reference


def dump(config: BaseModel) -> str:
    """Return a configuration as YAML, including all defaults."""
    return to_yaml(config.model_dump(mode="json"))


def to_yaml(content: Mapping[str, Any]) -> str:
    """Return a mapping as YAML, in its own order."""
    return write_values(dict(content))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file. Raises ConfigError if the file is missing or holds no mapping."""
    try:
        if path.exists() and not path.is_dir() and not path.is_file():
            raise ConfigError(f"{path} is not a file, expected a YAML file")  # a pipe would wait, a device may not end
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: found a larger file, expected a YAML file of at most {MAX_BYTES:,} bytes")
        text = content.decode()
    except IsADirectoryError:
        raise ConfigError(f"{path} is a directory, expected a YAML file") from None
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist, expected a YAML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text, expected a YAML file") from None
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: found {shown(values)}, expected keys and values")
    return values


def read_source(source: ConfigLike, name: str = "config") -> tuple[dict[str, Any], str]:
    """Return the mapping of a configuration, and its name for error messages.

    Args:
        source: A YAML file, a mapping, or a validated configuration.
        name: The argument that it was passed as, for error messages.

    Raises:
        ConfigError: If it is a file that is missing or holds no mapping, or something else.
    """
    if isinstance(source, BaseModel):
        return source.model_dump(mode="json"), type(source).__name__
    if isinstance(source, Mapping):
        _check_limits(source)
        return copy.deepcopy(dict(source)), name
    if isinstance(source, str | os.PathLike):
        return read_yaml(Path(source)), str(source)
    raise ConfigError(f"{name}: found {shown(source)}, expected the path of a YAML file, a dictionary or a model")


def _check_limits(content: object) -> None:
    """Refuse a mapping of a program that is larger or deeper than that of any file, or contains itself."""
    waiting, seen = [(content, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        waiting.extend((one, depth + 1) for one in inner)
        seen += 1
        if seen > MAX_VALUES or depth > MAX_DEPTH:
            raise ConfigError(
                f"config: found more than {MAX_VALUES:,} values, or values nested deeper than {MAX_DEPTH}"
            )


def parse_yaml(text: str, where: str) -> Any:
    """Parse a YAML text, within the limits of :mod:`rankfall._yaml_reader`. `where` is the prefix of error messages."""
    try:
        return read_values(text)
    except yaml.reader.ReaderError as error:
        line, column = text.count("\n", 0, error.position) + 1, error.position - text.rfind("\n", 0, error.position)
        found = f"found the character U+{ord(text[error.position]):04X}, which YAML does not allow"
        raise ConfigError(f"{where}, line {line}, column {column}: {found}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{where}{place}: {getattr(error, 'problem', None) or error}") from None


def leaves(content: Any, *, separator: str = ".", key: str = "") -> dict[str, Any]:
    """Return the values of nested mappings and lists by their dotted keys.

    >>> leaves({"loss": {"name": "relax_loss", "m": 20}, "hidden": [64, 32]})
    {'loss.name': 'relax_loss', 'loss.m': 20, 'hidden.0': 64, 'hidden.1': 32}
    """
    if not isinstance(content, dict | list):
        return {key: content}
    found: dict[str, Any] = {}
    for name, part in content.items() if isinstance(content, dict) else enumerate(content):
        found |= leaves(part, separator=separator, key=f"{key}{separator}{name}" if key else str(name))
    return found


# --- error messages -----------------------------------------------------------------------------------------------


def explain(error: ValidationError, where: str) -> str:
    """Return one line per validation error: the key, the value found, and the values allowed."""
    errors = error.errors()
    lines = [f"{where}: {_error_line(details)}" for details in errors[:MAX_ERRORS]]
    more = len(errors) - len(lines)
    return "\n".join(lines + ([f"{where}: and {more} more errors"] if more else []))


def _error_line(details: ErrorDetails) -> str:
    # Pydantic inserts the tag of a union between the keys.
    key = ".".join(str(part) for part in details["loc"] if not str(part).startswith(KIND))
    found = shown(details["input"])
    match details["type"]:
        case "missing":
            return f"{key} is missing"
        case "value_error":
            error = details["ctx"]["error"]
            path = ".".join(filter(None, (key, *getattr(error, "keys", ()))))
            return f"{path}: {error}".removeprefix(": ")
        case "literal_error":
            choices = re.findall(r"'([^']*)'", details["ctx"]["expected"])
            hint = did_you_mean(details["input"], choices)
            return f"{key}: found {found}{hint}; allowed are {', '.join(choices)}"
        case "union_tag_invalid":
            tag = details["ctx"]["tag"].removeprefix(KIND)
            choices = re.findall(rf"'{KIND}([^']*)'", details["ctx"]["expected_tags"])
            return f"{key}.kind: found {tag!r}{did_you_mean(tag, choices)}; allowed are {', '.join(choices)}"
        case "model_type" | "dict_type" | "dataclass_type":
            return f"{key}: found {found}, expected keys and values".removeprefix(": ")
        case _:
            return f"{key}: found {found}, expected {details['msg'].removeprefix('Input should be ')}"


def shown(value: object) -> str:
    """Return the repr of a value for messages, shortened to 60 characters."""
    try:
        text = "nothing" if value is None else repr(value)
    except ValueError:  # Python does not write numbers of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]  # NaN is null in JSON


class ResultError(RankfallError):
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
