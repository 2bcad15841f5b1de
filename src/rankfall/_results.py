"""Results as frozen dataclasses with one JSON form each.

The JSON form has the fields of a class as keys, in the order of the class. NaN is written as null. A field whose
default is None is left out while it is None. Other defaults are for files that were written before the field existed.

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

import base64
import copy
import importlib.util
import json
import math
from dataclasses import Field, fields, is_dataclass
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, cast

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from rankfall._files import write_file
from rankfall._suggestions import did_you_mean
from rankfall._yaml_config import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from pathlib import Path

    import polars as pl

    Row = dict[str, Any]
    Draw = Callable[[Any], str | None]

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
            content: what :meth:`to_json` returns, or an older version of it.
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
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise ResultError(f"{path} is damaged: it is not JSON") from None
        return cls.from_json(content, where=str(path))

    def save(self, path: Path, *, indent: int = 2) -> None:
        """Write the result to a file, atomically."""
        write_file(path, json.dumps(self.to_json(), indent=indent, allow_nan=False) + "\n")


# --- tables -------------------------------------------------------------------------------------------------------

SHOWN_ROWS = 20  # of a table in a notebook
_DRAWN: dict[type, Draw] = {}
AnyDraw = TypeVar("AnyDraw", bound="Draw")


def draws(kind: type) -> Callable[[AnyDraw], AnyDraw]:
    """Decorate a function that returns the figure of a result of this class as an SVG document, or None.

    Results are below the package that draws them, so that package registers its functions here.
    """

    def register(draw: AnyDraw) -> AnyDraw:
        _DRAWN[kind] = draw
        return draw

    return register


class Tables:
    """A result that is shown as tables: in data frames, in a notebook and as text.

    A subclass returns the rows of its tables from :meth:`tables`. Undefined values are null.
    """

    _directory: Path | None = None

    @property
    def directory(self) -> Path | None:
        """Directory of the files of this result; None if nothing was written."""
        return self._directory

    def stored_in(self, directory: Path | None) -> Self:
        """Return a copy that knows the directory of its files."""
        copied = copy.copy(self)
        object.__setattr__(copied, "_directory", directory)
        return copied

    def tables(self) -> dict[str, list[Row]]:
        """Return the rows of each table by its name. All rows of a table have the same columns."""
        raise NotImplementedError

    def to_polars(self, table: str | None = None) -> pl.DataFrame:
        """Return a table as a polars data frame.

        Args:
            table: Name of the table, by default the first of :meth:`tables`.

        Raises:
            ValueError: If there is no table of this name.
        """
        import polars as pl

        tables = self.tables()
        if table is not None and table not in tables:
            raise ValueError(f"table: found {table!r}{did_you_mean(table, tables)}; allowed are {', '.join(tables)}")
        rows = tables[next(iter(tables)) if table is None else table]
        return pl.DataFrame({name: _column([row[name] for row in rows]) for name in (rows[0] if rows else ())})

    def to_pandas(self, table: str | None = None) -> Any:
        """Return a table as a pandas data frame.

        Args:
            table: Name of the table, by default the first of :meth:`tables`.

        Raises:
            ImportError: If pandas is not installed.
            ValueError: If there is no table of this name.
        """
        if importlib.util.find_spec("pandas") is None:
            raise ImportError("to_pandas needs pandas, which is not installed: pip install pandas")
        return self.to_polars(table).to_pandas()

    def __repr__(self) -> str:
        import polars as pl

        name = type(self).__name__
        place = "" if self.directory is None else f" in {self.directory}"
        with pl.Config(tbl_hide_column_data_types=True, tbl_rows=SHOWN_ROWS, tbl_width_chars=120):
            return f"{name}{place}\n{self.to_polars()}"

    def _repr_html_(self) -> str:
        """Return the first table and the figure, for notebooks. The colours are those of the notebook."""
        title = escape(type(self).__name__ if self.directory is None else f"{type(self).__name__}: {self.directory}")
        return f"<div><p><b>{title}</b></p>{_html_table(next(iter(self.tables().values())))}{_html_figure(self)}</div>"


def _column(values: Sequence[Any]) -> list[Any]:
    """Return values of one type: undefined numbers as None, lists and mixed types as JSON text."""
    plain = [None if isinstance(value, float) and math.isnan(value) else value for value in values]
    kinds = {type(value) for value in plain if value is not None}
    if kinds <= {int, float} or (len(kinds) == 1 and kinds <= {bool, str}):
        return [float(value) if kinds == {int, float} and value is not None else value for value in plain]
    return [value if value is None or isinstance(value, str) else json.dumps(_to_json(value)) for value in plain]


def _html_table(rows: Sequence[Row]) -> str:
    if not rows:
        return "<p>no rows</p>"
    numeric = {name for name in rows[0] if all(isinstance(row[name], int | float | None) for row in rows)}
    head = "".join(_html_cell("th", name, right=name in numeric) for name in rows[0])
    body = "".join(
        "<tr>" + "".join(_html_cell("td", _cell_text(row[name]), right=name in numeric) for name in row) + "</tr>"
        for row in rows[:SHOWN_ROWS]
    )
    more = f"<p>and {len(rows) - SHOWN_ROWS:,} more rows</p>" if len(rows) > SHOWN_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _html_cell(tag: str, text: str, *, right: bool) -> str:
    return f'<{tag} style="text-align:{"right" if right else "left"}">{escape(text)}</{tag}>'


def _cell_text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"
    return str(value) if isinstance(value, str | int) else json.dumps(_to_json(value))


def _html_figure(result: Tables) -> str:
    """Return the figure as an image, so that its styles and names do not mix with those of the notebook."""
    for kind in type(result).__mro__:
        svg = _DRAWN[kind](result) if kind in _DRAWN else None
        if svg is not None:
            content = base64.b64encode(svg.encode()).decode()
            return f'<img alt="figure of the result" style="max-width:100%" src="data:image/svg+xml;base64,{content}"/>'
    return ""


# --- JSON ---------------------------------------------------------------------------------------------------------


def json_text(content: object) -> str:
    """Return content as JSON, with null for NaN and infinity."""
    return json.dumps(_finite(content), indent=2, allow_nan=False)


def _finite(content: object) -> object:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content


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
