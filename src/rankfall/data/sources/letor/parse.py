"""Ranking text: ``label qid:Q 1:v 2:v ... # comment`` (LETOR, SVMlight, LibSVM), a block of lines at a time.

:func:`parse_block` reads thousands of lines with expressions of polars, which release the interpreter lock, so that
threads help. If a line is invalid, :func:`parse_line` finds all such lines of the block and says what is wrong with
each of them.

A line may end in CRLF, be indented, use tabs and have a comment after ``#``; blank lines and lines with only a comment
are skipped. A label is a number. Feature ids are whole numbers that increase along the line. Numbers are parsed as
float64 and stored as float32, as ``sklearn.datasets.load_svmlight_file`` does.
"""

from __future__ import annotations

import gzip
import lzma
import math
import re
import zlib
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.storage.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MAX_ID = 100_000  # larger ids are usually mistakes; callers may raise the limit
LONGEST_ID = 8  # digits

_NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_MISSING = {b"", b"null", b"none", b"na", b"nan", b"?"}
_INFINITE = {b"inf", b"infinity"}
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_DOCID = r"docid[ \t\r\f]*=[ \t\r\f]*([^ \t\r\f]+)"
_WORD = r"[^ \t\r\v\f]+"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for lines and values."""

    with_qid: bool = True
    missing: bool = False  # a value that is no finite float32 is missing (NaN), not an error
    log1p: bool = False  # values become sign(v) log(1 + |v|)
    max_id: int = MAX_ID


class Line(NamedTuple):
    """The result of :func:`parse_line`."""

    label: float
    qid: bytes | None
    ids: list[int]
    values: list[float]


class BadLine(NamedTuple):
    """An invalid line and the reason."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """The rows of some lines, with features as ids and values."""

    labels: NDArray[np.float32]
    lines: NDArray[np.int64]  # the line of each row, the first line of the block being 0
    qids: pl.Series | None  # strings, None without qid
    docids: pl.Series | None  # strings, empty for lines without a comment; None if no line has one
    counts: NDArray[np.int64]  # the number of features of each row
    ids: NDArray[np.int32]
    values: NDArray[np.float32]
    bad: list[BadLine] = field(default_factory=list)


class _InvalidLineError(Exception):
    """The block has an invalid line."""


# --- one line, exactly --------------------------------------------------------------------------------------


def parse_line(line: bytes, rules: Rules) -> Line | None:
    """Parse one line.

    Returns:
        The parsed line; None if it is blank.

    Raises:
        ValueError: If the line is invalid; the message gives the reason.

    >>> parse_line(b"+1 qid:7 1:0.5 3:2e1 # docid = x", Rules())
    Line(label=1.0, qid=b'7', ids=[1, 3], values=[0.5, 20.0])
    """
    body = line.partition(b"#")[0]
    if found := _CONTROL.search(body):
        raise RankfallError(f"found a control character, {found[0]!r}, at byte {found.start() + 1}")
    tokens = body.split()
    if not tokens:
        return None
    if not _NUMBER.fullmatch(tokens[0]) or not math.isfinite(_stored(float(tokens[0]))):
        raise RankfallError(f"the label {_shown(tokens[0])} is not a finite number")
    qid = None
    features = tokens[1:]
    if features and features[0].startswith(b"qid:"):
        if not rules.with_qid:
            raise RankfallError(f"found {_shown(features[0])}, but the lists of this file come without qid")
        qid = features.pop(0)[4:]
        if not qid:
            raise RankfallError("found no id after 'qid:'")
    elif rules.with_qid:
        raise RankfallError("found no 'qid:' after the label")
    ids: list[int] = []
    values: list[float] = []
    for token in features:
        ids.append(_feature_id(token, ids, rules))
        values.append(_value(token, rules))
    return Line(float(tokens[0]), qid, ids, values)


def parse_number(token: bytes) -> float:
    """Parse a number; a word or sign for a missing value becomes NaN, anything else raises `ValueError`.

    >>> parse_number(b"-1.5e3"), parse_number(b"NULL"), parse_number(b"+inf")
    (-1500.0, nan, inf)
    """
    if _NUMBER.fullmatch(token):
        return float(token)
    word = token.lower()
    if word in _MISSING or word.lstrip(b"+-") == b"nan":
        return math.nan
    if word.lstrip(b"+-") in _INFINITE:
        return -math.inf if word.startswith(b"-") else math.inf
    raise RankfallError(f"{_shown(token)} is not a number")


def _feature_id(token: bytes, before: list[int], rules: Rules) -> int:
    text, colon, value = token.partition(b":")
    if not colon:
        raise RankfallError(f"{_shown(token)} is not of the form id:value")
    if b":" in value:
        raise RankfallError(f"{_shown(token)} has more than one colon")
    if not (text.isdigit() and text.isascii()):
        raise RankfallError(f"the feature id of {_shown(token)} is not a whole number >= 0")
    if len(text) > LONGEST_ID or int(text) > rules.max_id:
        raise RankfallError(f"the feature id of {_shown(token)} is above the limit of {rules.max_id} (see --features)")
    if before and int(text) <= before[-1]:
        raise RankfallError(f"found feature id {int(text)} after {before[-1]}; ids must increase along a line")
    return int(text)


def _value(token: bytes, rules: Rules) -> float:
    try:
        value = parse_number(token.partition(b":")[2])
    except ValueError:
        raise RankfallError(f"the value of {_shown(token)} is not a number") from None
    if rules.log1p:
        value = math.copysign(math.log1p(abs(value)), value)
    if math.isfinite(_stored(value)):
        return value
    if rules.missing:
        return math.nan
    if math.isfinite(value):
        raise RankfallError(f"the value of {_shown(token)} is too large for float32 (see --log1p, --missing-value)")
    raise RankfallError(f"the value of {_shown(token)} is missing or not finite (see --missing-value)")


def _stored(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _shown(token: bytes) -> str:
    text = _decode(token)
    return repr(text if len(text) <= 40 else text[:40] + "...")


# --- a block of lines, fast ---------------------------------------------------------------------------------


def parse_block(text: bytes, rules: Rules) -> ParsedBlock:
    """Parse a block of whole lines; invalid lines are left out and listed in `bad`.

    >>> block = parse_block(b"1 qid:7 1:0.5 3:2\\n0 qid:7 2:nan\\n", Rules())
    >>> block.labels, block.ids, block.values, block.bad[0].line
    (array([1.], dtype=float32), array([1, 3], dtype=int32), array([0.5, 2. ], dtype=float32), 1)
    """
    lines = text.removesuffix(b"\n").split(b"\n")
    try:
        return _parse(lines, rules)
    except _InvalidLineError:
        bad = []
        for number, line in enumerate(lines):
            try:
                parse_line(line, rules)
            except ValueError as error:
                bad.append(BadLine(number, str(error)))
                lines[number] = b""
        return replace(_parse(lines, rules), bad=bad)


def _parse(lines: list[bytes], rules: Rules) -> ParsedBlock:
    """Parse lines.

    Raises:
        _InvalidLineError: If one of them may be invalid.
    """
    try:
        texts = b"\n".join(lines).decode().split("\n")
    except UnicodeDecodeError:
        texts = list(map(_decode, lines))
    parts = pl.Series("line", texts, pl.String).str.splitn("#", 2).struct.unnest()
    rows = parts.select(body="field_0", comment="field_1", words=pl.col("field_0").str.extract_all(_WORD))
    rows = rows.with_row_index("line").filter(pl.col("words").list.len() > 0)
    words, before = rows["words"], 2 if rules.with_qid else 1
    counts = words.list.len().cast(pl.Int64).to_numpy() - before
    qids = words.list.get(1, null_on_oob=True) if rules.with_qid else None
    features = words.list.slice(before).explode(empty_as_null=False).str.splitn(":", 2).struct.unnest()
    ids = features["field_0"].cast(pl.Int32, strict=False)
    _require(not rows["body"].str.contains(r"[\x00-\x08\x0e-\x1f]").any())
    _require((counts >= 0).all() and (qids is None or bool(qids.str.contains("^qid:.").all())))
    _require(not ids.has_nulls() and not features["field_0"].str.contains_any(["+", "-"]).any())
    _require(not (features["field_0"].str.len_bytes() > LONGEST_ID).any())
    numbers, is_first = ids.to_numpy(), np.zeros(len(ids) + 1, np.bool_)
    is_first[np.cumsum(counts) - counts] = True
    _require(bool((is_first[1:-1] | (numbers[1:] > numbers[:-1])).all()) and numbers.max(initial=0) <= rules.max_id)
    labels, values = _numbers(words.list.first()), _numbers(features["field_1"])
    if rules.log1p:
        values = np.copysign(np.log1p(np.abs(values)), values)
    with np.errstate(over="ignore"):
        stored_labels, stored = labels.astype(np.float32), values.astype(np.float32)
    stored[~np.isfinite(stored)] = np.nan
    _require(bool(np.isfinite(stored_labels).all()) and (rules.missing or not np.isnan(stored).any()))
    comments = rows["comment"]
    docids = comments.str.extract(_DOCID).fill_null(comments.str.strip_chars()).fill_null("")
    return ParsedBlock(
        labels=stored_labels,
        lines=rows["line"].cast(pl.Int64).to_numpy(),
        qids=None if qids is None else qids.str.slice(4),
        docids=docids if parts["field_1"].is_not_null().any() else None,
        counts=counts,
        ids=numbers,
        values=stored,
    )


def _require(holds: bool | np.bool_) -> None:
    if not holds:
        raise _InvalidLineError


def _numbers(texts: pl.Series) -> NDArray[np.float64]:
    """Parse numbers; missing ones are not finite. The exact rules decide on all but usual spellings."""
    values = texts.cast(pl.Float64, strict=False)
    odd = ~values.is_finite().fill_null(False)
    if odd.any():
        try:
            exact = {text: parse_number(b":" if text is None else text.encode()) for text in texts.filter(odd).unique()}
        except ValueError:
            raise _InvalidLineError from None
        values = values.zip_with(~odd, texts.replace_strict(exact, default=None, return_dtype=pl.Float64))
    found: NDArray[np.float64] = values.to_numpy(writable=True)
    return found


def _decode(text: bytes) -> str:
    """Decode UTF-8, or Latin-1 if that fails: old collections have both, sometimes in one file."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How lists and features are prepared; the manifest stores it.

    Args:
        min_list: Drop lists with fewer documents.
        max_list: Cut longer lists to a sample of this size (ARF, B.2, uses 41, 200 and 15 for these three options, and
            `replacement`). The sample depends on `seed` and the query id only.
        keep_positives: The smallest number of documents with a label above 0 in such a sample, if the list has that
            many.
        replacement: Draw such a sample with replacement, as ARF does: a document can occur several times, and a list
            with fewer positives than `keep_positives` gets copies of them.
        log1p: Transform a feature v to sign(v) log(1 + abs(v)).
        missing_value: Replaces values that are missing or not finite, after `log1p`; by default they are errors.
        missing_indicator: Add a column, which is 1 for missing values, for each feature that has some.
        standardise: The splits whose mean and deviation standardise all splits.
        regroup: Bring together the lines of a query that are apart.
        skip_bad_lines: Leave out invalid lines instead of raising an error.
        features: The number of features; by default the largest id decides.
        first_id: The smallest feature id; by default 0 if it occurs, else 1.
        seed: Seed of the samples.
    """

    min_list: int = 1
    max_list: int | None = None
    keep_positives: int = 15
    replacement: bool = False
    log1p: bool = False
    missing_value: float | None = None
    missing_indicator: bool = False
    standardise: tuple[str, ...] = ()
    regroup: bool = False
    skip_bad_lines: bool = False
    features: int | None = None
    first_id: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges of all options."""
        width, missing, most = self.features, self.missing_value, self.max_list
        rules = {
            "min_list": (self.min_list >= 1, "at least 1"),
            "keep_positives": (self.keep_positives >= 0, "at least 0"),
            "first_id": (self.first_id in (None, 0, 1), "0, 1 or None"),
            "seed": (self.seed >= 0, "at least 0"),
            "max_list": (most is None or most >= self.min_list, f"at least min_list, {self.min_list}"),
            "features": (width is None or 1 <= width < 10**8, "from 1 to 99999999"),
            "missing_indicator": (
                not self.missing_indicator or missing is not None,
                "given together with missing_value",
            ),
            "missing_value": (missing is None or bool(np.isfinite(np.float32(missing))), "a finite number"),
        }
        for name, (holds, allowed) in rules.items():
            check(holds, name, getattr(self, name), allowed)


def check(holds: bool, name: str, found: object, allowed: str) -> None:
    """Raise an error with the found and the allowed value if a condition does not hold."""
    if not holds:
        raise RankfallError(f"{name}: expected {allowed}, found {found}")


BLOCK_BYTES = 2 << 20  # large enough to spend the time in array operations, small enough for the cache
LONGEST_LINE = 64 << 20  # a file with longer lines is not a text file

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OPENERS: dict[bytes, Any] = {  # by the first bytes of a file
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": lambda file: pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"),
}


def read_blocks(path: Path, on_read: Callable[[int], None] = lambda n: None) -> Iterator[bytes]:
    """Iterate over the text of a file in blocks of whole lines, each with its last newline.

    Args:
        path: The file; gzip, xz and zstd are recognised by its first bytes.
        on_read: Receives the number of stored bytes read since the last call.
    """
    parts: list[bytes] = []  # of an incomplete line
    read = 0
    with open_regular(path) as file, _unpacked(file, path) as text:
        chunk = text.read(BLOCK_BYTES).removeprefix(_BYTE_ORDER_MARK)
        while chunk:
            on_read(file.tell() - read)
            read = file.tell()
            cut = chunk.rfind(b"\n") + 1
            if cut:
                yield b"".join([*parts, chunk[:cut]])
                parts.clear()
            parts.append(chunk[cut:])
            if sum(map(len, parts)) > LONGEST_LINE:
                raise RankfallError(
                    f"{path}: found a line of more than {LONGEST_LINE >> 20} MB, expected a text file of lines"
                )
            chunk = text.read(BLOCK_BYTES)
        if any(parts):
            yield b"".join([*parts, b"\n"])
    on_read(path.stat().st_size - read)  # some bytes may follow the compressed data


@contextmanager
def _unpacked(packed: BinaryIO, path: Path) -> Iterator[IO[bytes]]:
    """Decompress a file according to its first bytes."""
    start = packed.read(8)
    packed.seek(0)
    opener = next((one for mark, one in _OPENERS.items() if start.startswith(mark)), nullcontext)
    try:
        with opener(packed) as text:
            yield text
    except (EOFError, OSError, zlib.error, lzma.LZMAError, pa.ArrowInvalid) as error:
        if getattr(error, "errno", None) is not None:
            raise  # errors of the operating system have a number, those of damaged data have none
        raise RankfallError(f"{path}: damaged or truncated ({error})") from error
