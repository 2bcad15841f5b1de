"""Facts about the columns of a sample of rows: types, numbers of values, and which columns determine which."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import polars as pl

from rankfall._errors import RankfallError, did_you_mean
from rankfall.data.impressions.encoding import parse_times
from rankfall.data.sources.rows.row_files import text_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rankfall.data.impressions.spec import Unit
    from rankfall.data.sources.rows.row_files import InvalidRow, RowFile

    OnInvalid = Callable[[RowFile, InvalidRow], None]


def _words(text: str) -> set[str]:
    return set(text.split())


ID = _words("id ids nr no num number nummer key code uuid guid hash kennung ident")
ROW = _words("row line zeile ligne fila unnamed")
MOMENT = _words(
    "time timestamp ts date datetime datum zeit zeitpunkt zeitstempel uhrzeit at when created epoch hora fecha heure "
    "horodatage tijd ms utc"
)
DAY = _words("day tag dt ds date datum partition jour dia fecha")
KEYS: dict[str, set[str]] = {
    "request": _words(
        "request req requests query qid search srch impression imp auction slate session sess pageview pv page view "
        "list anfrage suche suchanfrage such sitzung seitenaufruf aufruf requete recherche solicitud busqueda trace "
        "rid"
    ),
    "item": _words(
        "item iid product prod pid sku asin article artikel produkt video vid doc document docid ad song track movie "
        "film book hotel prop listing offer angebot news post content produit articulo producto candidate kandidat "
        "photo note job property restaurant recipe goods"
    ),
    "user": _words(
        "user uid visitor customer cust client member kunde kunden nutzer benutzer besucher account konto person "
        "usuario cliente utilisateur cookie viewer shopper traveler guest subscriber profile"
    ),
}
LABEL = _words(
    "click clicked clicks clk klick geklickt angeklickt clic purchase purchased bought buy gekauft kauf conversion "
    "converted booking booked gebucht label target relevance relevant rel relevanz like liked rating grade cart "
    "warenkorb favorite interaction interacted follow forward comment share install watched viewed played achat compra "
    "comprado bestellt ordered conv cvr feedback response engaged"
)
CLICK = _words("click clicked clicks clk klick geklickt angeklickt clic")
SHOWN = _words("shown show realshow displayed exposed exposure angezeigt gezeigt visible seen")
VIEW = _words("view viewed watched played")
HISTORIC = _words(
    "count cnt num avg mean rate ctr total sum anzahl ratio share days past last prev previous hist history prob pred "
    "predicted score far today"
)
STAGE = _words("stage stufe phase depth funnel layer etape tiefe event action step status")
RANK = _words("rank rang ranking order ord idx index platz")
POSITION = _words("position pos slot placement platz platzierung place posicion")
SCORE = _words("score scores logit prediction pred predicted punktzahl pctr pcvr")
SEQUENCE = _words("history hist sequence seq recent last past previous verlauf events")
CATEGORY = _words(
    "category cat kategorie brand marke type typ class group segment gender city country location destination land "
    "stadt region zip plz device channel level author seller shop store color farbe size genre language sprache "
    "province weekday month hour"
)
COARSE = _words("coarse rough grob")

# Names of stages and of what happens to items, from the beginning of the funnel to its end.
FUNNEL: list[set[str]] = [
    _words("candidate candidates pool none kandidat"),
    _words("retrieval retrieved recall recalled match matched matching gefunden"),
    _words("prerank preranked preranking preselection vorauswahl vorsortiert filter filtered"),
    COARSE,
    _words("rank ranked ranking fine fein sortiert gerankt scored"),
    _words("rerank reranked reranking mix mixed final blended"),
    SHOWN | _words("impression impressed view viewed ansicht display listed page"),
    CLICK | _words("detail open opened"),
    _words("cart warenkorb basket wishlist addtocart"),
    _words("purchase purchased bought buy kauf gekauft order ordered booking booked conversion"),
]
CLICKS = next(place for place, known in enumerate(FUNNEL) if "click" in known)
_PREFIXES = {"pre", "re", "p"}  # pre_rank, pre-rank and pCTR are one word
_OUTCOMES = {"neg": 0, "negative": 0, "dropped": 0, "pos": 1, "positive": 1, "kept": 1}


def words(name: str) -> list[str]:
    """Return the lower-case words of a name, without accents.

    >>> words("KundenNr"), words("pre_rank"), words("Größe (cm)"), words("userid"), words("Artikelnummer")
    (['kunden', 'nr'], ['prerank'], ['grosse', 'cm'], ['user', 'id'], ['artikel', 'nummer'])
    """
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", plain)
    parts = [part for part in re.split(r"[^a-z0-9]+", plain.lower()) if part]
    found: list[str] = []
    for part in parts:
        if found and found[-1] in _PREFIXES:
            found[-1] += part
        else:
            found += _split(part)
    return found


def _split(word: str) -> list[str]:
    """Split a word that ends in a word for ids, such as userid and Kundennummer, if the rest is a known key."""
    for ending in sorted(ID, key=len, reverse=True):
        rest = word.removesuffix(ending)
        if rest != word and any(rest in known for known in KEYS.values()):
            return [rest, ending]
    return [word]


def key_match(name: str, role: str) -> int:
    """Return how well a name fits a key: 3 for the key itself, 2 with other words for ids, 1 for an id of a part, or 0.

    >>> key_match("userId", "user"), key_match("user_city", "user"), key_match("parent_product_id", "item")
    (3, 0, 1)
    >>> key_match("visitor_country_id", "user")
    0
    """
    found = words(name)
    rest = [word for word in found if word not in ID]
    known = KEYS[role]
    if rest and all(word in known for word in rest):
        return 3
    if not rest and found:
        return 1 if role == "request" else 0  # a column "id"
    of_part = len(rest) < len(found) and any(word in known for word in rest) and not CATEGORY & set(rest)
    return 1 if of_part else 0


def funnel_place(name: str) -> tuple[int, int] | None:
    """Return the place of a stage in a funnel, from its name; None if the name is unknown.

    >>> funnel_place("prerank_neg") < funnel_place("rank_neg") < funnel_place("rank_pos") < funnel_place("is_shown")
    True
    >>> funnel_place("coarse_rank") < funnel_place("fine_rank")
    True
    """
    found = words(name)
    places = [place for place, known in enumerate(FUNNEL) if known & set(found)]
    if not places:
        return None
    place = min(places) if COARSE & set(found) else max(places)
    return place, max((_OUTCOMES[word] for word in found if word in _OUTCOMES), default=0)


Role = Literal[
    "request", "item", "user", "time", "day", "stage", "flag", "rank", "position", "label", "feedback", "sequence",
    "user_feature", "context_feature", "item_feature", "ignore"
]  # fmt: skip
Confidence = Literal["given", "high", "medium", "low"]
ROLES: tuple[Role, ...] = get_args(Role)
SINGLE: tuple[Role, ...] = ("request", "item", "user", "time", "day", "stage", "rank", "position", "label")


@dataclass(frozen=True, slots=True)
class Guess:
    """The role of a column.

    Attributes:
        column: Name of the column.
        role: Its role.
        confidence: How certain the guess is; ``given`` if the caller decided.
        why: What the role was guessed from.
    """

    column: str
    role: Role
    confidence: Confidence
    why: str


@dataclass
class Guesses:
    """The roles of all columns.

    Attributes:
        of: The guess of each column, in the order of the log.
        stages: Names of the stages in the order of the funnel, or the columns of flags; empty without a funnel.
        problems: What could not be decided, without which no log can be prepared.
        checks: What a person should look at.
    """

    of: dict[str, Guess] = field(default_factory=dict)
    stages: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)

    @property
    def relevant_stage(self) -> int:
        """The number of the stage from which on items are relevant, if there is no label: clicks, or the last one."""
        clicks = [number for number, stage in enumerate(self.stages) if CLICK & set(words(stage))]
        return clicks[0] if clicks and clicks[0] else len(self.stages) - 1

    def one(self, role: Role) -> str | None:
        """Return the column of a role, or None."""
        return next(iter(self.all(role)), None)

    def key(self, *roles: Role) -> str:
        """Return the column of the first of these roles that has one, or an empty text."""
        return next(filter(None, map(self.one, roles)), "")

    def all(self, role: Role) -> list[str]:
        """Return all columns of a role."""
        return [column for column, guess in self.of.items() if guess.role == role]


def parse_given(given: Iterable[str], columns: Sequence[str]) -> dict[str, Role]:
    """Return the roles of columns from texts ``ROLE=COLUMN``.

    Raises:
        ValueError: If a role or column does not exist, or two columns have a role that one column has.
    """
    found: dict[str, Role] = {}
    for text in given:
        role, equals, column = text.partition("=")
        if not equals or role not in ROLES:
            raise RankfallError(
                f"role: found {text!r}{did_you_mean(role, ROLES)}; expected ROLE=COLUMN with one of {', '.join(ROLES)}"
            )
        if column not in columns:
            raise RankfallError(
                f"role: found no column {column!r}{did_you_mean(column, columns)}; the columns are {', '.join(columns)}"
            )
        if column in found:
            raise RankfallError(f"role: found two roles of {column!r}, {found[column]} and {role}, expected one")
        found[column] = role
    for role in SINGLE:
        twice = [column for column, other in found.items() if other == role]
        if len(twice) > 1:
            raise RankfallError(f"role: found {role}={twice[0]} and {role}={twice[1]}, expected one column")
    return found


def as_json(guess: Guess) -> dict[str, Any]:
    """Return a guess as JSON values."""
    return {"column": guess.column, "role": guess.role, "confidence": guess.confidence, "why": guess.why}


CONSTANT = 0.98  # share of the values of a key in whose rows a column has one value: a few rows may be wrong


class Evidence:
    """Facts about columns, and the roles that were found so far.

    Args:
        sample: Rows and facts.
        given: Roles by column that are already decided.
    """

    def __init__(self, sample: Sample, given: Mapping[str, Role]) -> None:
        self.sample, self.frame, self.facts = sample, sample.frame, sample.facts
        self.guesses = Guesses()
        self.found, self.column, self.key = self.guesses.of, self.guesses.one, self.guesses.key
        for column, role in given.items():
            self.set(column, role, "given", "--role")

    def set(self, column: str, role: Role, confidence: Confidence, why: str) -> None:
        """Set the role of a column."""
        self.found[column] = Guess(column, role, confidence, why)

    def check(self, text: str) -> None:
        """Note what a person should look at."""
        self.guesses.checks.append(text)

    def free(self) -> list[ColumnFacts]:
        """Return the columns without a role."""
        return [facts for name, facts in self.facts.items() if name not in self.found]

    def is_constant(self, key: str, column: str) -> bool:
        """Return whether a column has one value per value of a key, with few exceptions; False without a key."""
        return bool(key) and self.sample.constancy(key).get(column, 0.0) >= CONSTANT

    def per_request(self, column: str, *, least: float = 1.0) -> bool:
        """Return whether a column has one value per request. Prepared logs refuse a single exception.

        Args:
            column: The column.
            least: The share of requests with one value. Below 1 for roles that a name or type already suggests:
                :func:`check_keys` names the exceptions.
        """
        request = self.key("request")
        return bool(request) and self.sample.constancy(request, strict=True).get(column, 0.0) >= least

    def problem(self, role: Role, text: str, candidates: Sequence[str] = ()) -> None:
        """Note that a role cannot be decided, and which option decides it."""
        named = candidates[0] if candidates else "COLUMN"
        more = f" (candidates: {', '.join(candidates)})" if len(candidates) > 1 else ""
        self.guesses.problems.append(f"{role}: {text}; try --role {role}={named}{more}")


Kind = Literal["empty", "truth", "whole", "number", "text", "time", "list", "vector", "other"]

_KEY = "\1key"
SAMPLE_ROWS = 60_000
SAMPLE_FILES = 8
_EPOCHS: dict[Unit, int] = {"s": 1, "ms": 10**3, "us": 10**6}
_USUAL = 0.98  # share of the values of a column of numbers or times that are such: a few may be words such as "unknown"
_EARLIEST, _LATEST = 946_684_800, 2_208_988_800  # 2000 and 2040, in seconds


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """Facts about one column of the sample.

    Attributes:
        name: Name of the column.
        kind: Type of its values. Dates, times and numbers of seconds since 1970 are times.
        distinct: Number of different values.
        missing: Share of rows without a value.
        low: Smallest number; 0 if the column has no numbers.
        high: Largest number.
        unit: Unit of a time that is a whole number.
        size: Length of all vectors of a column of vectors.
        examples: Some values, for people.
        words: Some other texts in a column of numbers, where they count as missing, or of times.
    """

    name: str
    kind: Kind
    distinct: int
    missing: float
    low: float = 0.0
    high: float = 0.0
    unit: Unit | None = None
    size: int = 0
    examples: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def terms(self) -> set[str]:
        """The words of the name."""
        return set(words(self.name))

    @property
    def has_name_of_day(self) -> bool:
        """Whether the name has a word for days."""
        return bool(DAY & self.terms)

    @property
    def is_key(self) -> bool:
        """Whether values may be ids: whole numbers or text."""
        return self.kind in ("whole", "text")

    @property
    def is_number(self) -> bool:
        """Whether values are numbers or truth values."""
        return self.kind in ("truth", "whole", "number")

    @property
    def is_flag(self) -> bool:
        """Whether all values are 0, 1, true or false, and some are not 0 or false."""
        if self.kind == "truth":
            return self.distinct == 2 or self.examples == ("True",)
        return self.kind == "whole" and self.low >= 0 and self.high == 1


@dataclass(frozen=True)
class Sample:
    """Some rows of a log with facts about their columns."""

    frame: pl.DataFrame
    facts: dict[str, ColumnFacts]

    @cached_property
    def _keys(self) -> dict[tuple[str, bool], dict[str, float]]:
        return {}

    def constancy(self, key: str, *, strict: bool = False) -> dict[str, float]:
        """Return for each column the share of values of `key` in whose rows the column has one value only.

        Args:
            key: The column of the key. Its values with a single row do not count.
            strict: Whether a missing value differs from all others; by default rows without a value do not count.
        """
        if (key, strict) not in self._keys:
            others = [name for name in self._comparable.columns if name != key]
            values = [pl.col(name) if strict else pl.col(name).drop_nulls() for name in others]
            counts = [value.n_unique() for value in values]
            counted = self._comparable.group_by(key).agg(pl.len().alias("\0rows"), *counts)
            repeated = counted.filter(pl.col("\0rows") > 1)
            shares = repeated.select((pl.col(others) <= 1).mean()).row(0) if len(repeated) else [0.0] * len(others)
            self._keys[key, strict] = dict(zip(others, shares, strict=True))
        return self._keys[key, strict]

    @cached_property
    def _comparable(self) -> pl.DataFrame:
        return self.frame.select(_comparable(self.frame[name]) for name in self.frame.columns)

    def rows_per_value(self, key: str) -> float:
        """Return the mean number of rows per value of a column."""
        return len(self.frame) / max(1, self.facts[key].distinct)


def read_sample(files: Sequence[RowFile], on_invalid: OnInvalid) -> Sample:
    """Read some rows of some of the files, and collect facts about their columns.

    Args:
        files: Files of rows.
        on_invalid: Receives rows that cannot be read, which are left out.

    Raises:
        ValueError: If files cannot be read, have no rows, or have different columns.
    """
    chosen = [files[len(files) * number // SAMPLE_FILES] for number in range(SAMPLE_FILES)]
    chosen = list(dict.fromkeys(chosen))
    heads = [_head(file, SAMPLE_ROWS // len(chosen), on_invalid) for file in chosen]
    try:
        frame = pl.concat(heads, how="diagonal_relaxed")
    except pl.exceptions.SchemaError as error:
        names = ", ".join(str(file) for file in chosen)
        raise RankfallError(f"{names}: a column has types that do not fit each other: {error}") from None
    if not len(frame):
        raise RankfallError(f"{', '.join(str(file) for file in chosen)}: found no rows")
    if len(frame.columns) == 1 and any(mark in frame.columns[0] for mark in ";\t|"):
        raise RankfallError(f"{chosen[0]}: found one column, {frame.columns[0]!r}; columns must be separated by commas")
    typed = frame.select(_typed(frame[name]) for name in frame.columns)
    return Sample(typed, _all_facts(frame, typed))


def with_table(sample: Sample, files: Sequence[RowFile], key: str, on_invalid: OnInvalid) -> Sample:
    """Join the columns of a table to a sample; columns that the sample has already stay as they are.

    Args:
        sample: Rows and facts.
        files: The files of the table.
        key: The column by which it is joined.
        on_invalid: Receives rows that cannot be read, which are left out.

    Raises:
        ValueError: If a file has no such column, or if a key occurs twice.
    """
    rows = sample.frame.with_columns(pl.col(key).cast(pl.String).alias(_KEY))
    keys = rows.select(_KEY).unique()
    parts: list[pl.DataFrame] = []
    for file in files:
        if key not in (columns := file.columns()):
            raise RankfallError(f"{file}: found no column {key!r}, as in the log; the columns are {', '.join(columns)}")
        with_keys = (
            batch.with_columns(pl.col(key).cast(pl.String).alias(_KEY)) for batch in _batches(file, on_invalid)
        )
        parts += [batch.join(keys, on=_KEY, how="semi") for batch in with_keys]
    table = pl.concat(parts, how="diagonal_relaxed")
    if (repeated := table[_KEY].is_duplicated()).any():
        raise RankfallError(f"{files[0]}: {key} {table[_KEY].filter(repeated).min()!r} occurs twice")
    added = [name for name in table.columns if name not in rows.columns]
    joined = rows.join(table.select(_KEY, *added), on=_KEY, how="left", maintain_order="left").select(added)
    typed = joined.select(_typed(joined[name]) for name in added)
    return replace(
        sample, frame=sample.frame.hstack(typed.get_columns()), facts=sample.facts | _all_facts(joined, typed)
    )


def _all_facts(raw: pl.DataFrame, typed: pl.DataFrame) -> dict[str, ColumnFacts]:
    return {name: replace(_facts(typed[name]), words=_other_texts(raw[name], typed[name])) for name in typed.columns}


def _head(file: RowFile, rows: int, on_invalid: OnInvalid) -> pl.DataFrame:
    parts = [pl.DataFrame(schema=file.columns())]
    for batch in _batches(file, on_invalid):
        parts.append(batch)
        if sum(map(len, parts)) >= rows:
            break
    return pl.concat(parts[1:] or parts).head(rows)


def _batches(file: RowFile, on_invalid: OnInvalid) -> Iterator[pl.DataFrame]:
    columns = [name for name in file.columns() if name]  # a column without a name cannot be used
    return file.batches(columns, partial(on_invalid, file))


def _typed(values: pl.Series) -> pl.Series:
    """Give strings their type, times as instants; whole numbers with missing values may be written as floats."""
    if values.dtype == pl.String:
        kind = text_type(values, pl.Null(), {"number"})
        if kind == pl.Boolean():
            return values.str.to_lowercase() == "true"
        if kind in (pl.Int64(), pl.Float64()) and not _has_leading_zeros(values):
            values = values.cast(kind)
        elif kind == pl.String():
            values = _mostly_numbers(values)
    if values.dtype.is_float():
        whole = values.fill_nan(None).cast(pl.Int64, strict=False)
        exact = values.is_null().any() and bool((whole.cast(pl.Float64) == values).all())
        return whole if exact else values
    if isinstance(values.dtype, pl.Categorical | pl.Enum):
        values = values.cast(pl.String)
    if values.dtype == pl.String and _are_times(values.drop_nulls()):
        return parse_times(values, None, "UTC").dt.replace_time_zone(None)
    return values


def _mostly_numbers(values: pl.Series) -> pl.Series:
    """Return numbers if nearly all values are decimal numbers, and the texts otherwise: whole numbers may be ids."""
    numbers = values.cast(pl.Float64, strict=False)
    has_decimals = bool(values.str.contains(r"^-?\d+\.\d+$").any())
    present = len(values) - values.null_count()
    is_number = has_decimals and len(numbers) - numbers.null_count() >= _USUAL * present
    return numbers if is_number and not _has_leading_zeros(values) else values


def _other_texts(raw: pl.Series, typed: pl.Series) -> tuple[str, ...]:
    """Return some of the texts that are missing in a column of numbers, or are no times in a column of times."""
    if raw.dtype != pl.String or not (typed.dtype.is_numeric() or typed.dtype.is_temporal()):
        return ()
    return tuple(raw.filter(typed.is_null() & raw.is_not_null()).unique(maintain_order=True).head(3).to_list())


def _has_leading_zeros(values: pl.Series) -> bool:
    return bool(values.str.contains(r"^0\d").any())


def _facts(values: pl.Series) -> ColumnFacts:
    present = values.drop_nulls()
    if values.dtype.is_float():
        present = present.drop_nans()
    missing = 1 - len(present) / len(values)
    if not len(present):
        return ColumnFacts(values.name, "empty", 0, missing)
    kind, unit, size = _kind(present)
    distinct = _comparable(present).n_unique()
    low, high = _range(present) if present.dtype.is_numeric() else (0.0, 0.0)
    shown = _comparable(present.head(2000)).unique(maintain_order=True).head(3).to_list()
    examples = tuple(str(value)[:20] for value in shown[: 1 if kind in ("list", "vector") else 3])
    return ColumnFacts(values.name, kind, distinct, missing, low, high, unit, size, examples)


def _kind(present: pl.Series) -> tuple[Kind, Unit | None, int]:
    kind = present.dtype
    if kind == pl.Boolean:
        return "truth", None, 0
    if isinstance(kind, pl.List | pl.Array):
        return _list_kind(present)
    if kind.is_integer():
        unit = _epoch_unit(present)
        return ("time", unit, 0) if unit else ("whole", None, 0)
    if kind.is_float() or kind.is_decimal():
        return "number", None, 0
    if isinstance(kind, pl.Date | pl.Datetime):
        return "time", None, 0
    if kind != pl.String or present.head(20).str.contains(r"^\s*\{").all():  # JSON objects are text
        return "other", None, 0
    return "text", None, 0


def _list_kind(present: pl.Series) -> tuple[Kind, Unit | None, int]:
    lists = present.arr.to_list() if isinstance(present.dtype, pl.Array) else present
    inner = lists.explode().dtype
    if inner.is_float():
        lengths = lists.list.len()
        return ("vector", None, int(lengths[0])) if lengths.n_unique() == 1 and lengths[0] else ("other", None, 0)
    return ("list", None, 0) if inner.is_integer() or inner == pl.String else ("other", None, 0)


def _epoch_unit(present: pl.Series) -> Unit | None:
    """Return the unit of times since 1970; only columns with the name of a time are times."""
    if not MOMENT & set(words(present.name)):
        return None
    low, high = _range(present)
    found = [unit for unit, factor in _EPOCHS.items() if _EARLIEST * factor <= low <= high <= _LATEST * factor]
    return found[0] if found else None


def _range(present: pl.Series) -> tuple[float, float]:
    values = present.to_numpy()
    return float(values.min()), float(values.max())


def share(values: pl.Series) -> float:
    """Return the share of true values; 0 if there are none at all."""
    return float(values.fill_null(False).to_numpy().mean()) if len(values) else 0.0


def _are_times(present: pl.Series) -> bool:
    if share(present.head(1000).str.contains(r"^\s*\d{4}-\d\d-\d\d")) < _USUAL:
        return False
    return parse_times(present, None, "UTC").null_count() <= (1 - _USUAL) * len(present)


def _comparable(values: pl.Series) -> pl.Series:
    """Return values of a type that can be grouped and counted."""
    if isinstance(values.dtype, pl.Array):
        values = values.arr.to_list()
    if isinstance(values.dtype, pl.List):
        return values.cast(pl.List(pl.String)).list.join(" ")
    return values.struct.json_encode() if isinstance(values.dtype, pl.Struct) else values
