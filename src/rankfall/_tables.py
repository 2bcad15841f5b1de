"""Results as tables: data frames, HTML for notebooks, and text.

Importing this module imports neither polars nor pydantic, so that the command line starts at once.
"""

from __future__ import annotations

import base64
import copy
import importlib.util
import json
import math
from html import escape
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rankfall._errors import RankfallError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import polars as pl

    Row = dict[str, Any]
    Draw = Callable[[Any], str | None]

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
            raise RankfallError(f"table: found {table!r}{did_you_mean(table, tables)}; allowed are {', '.join(tables)}")
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
        table = _html_table(next(iter(self.tables().values())))
        return f'<div><p><b>{title}</b></p><div style="overflow-x:auto">{table}</div>{_html_figure(self)}</div>'


class StoredTables(Tables):
    """A result of a function that always writes files."""

    @property
    def directory(self) -> Path:
        """Directory of the files of this result."""
        assert self._directory is not None  # only functions of the API make such results
        return self._directory


def _column(values: Sequence[Any]) -> list[Any]:
    """Return values of one type: undefined numbers as None, lists and mixed types as JSON text."""
    plain = [None if isinstance(value, float) and math.isnan(value) else value for value in values]
    kinds = {type(value) for value in plain if value is not None}
    if kinds <= {int, float} or (len(kinds) == 1 and kinds <= {bool, str}):
        return [float(value) if kinds == {int, float} and value is not None else value for value in plain]
    return [value if value is None or isinstance(value, str) else json.dumps(_finite(value)) for value in plain]


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
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"
    return str(value) if isinstance(value, str | int) else json.dumps(_finite(value))


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
