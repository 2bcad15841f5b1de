"""Ranking text: ``label qid:Q 1:v 2:v ... # comment`` (LETOR, SVMlight, LibSVM), a block of lines at a time.

Two parsers state the same rules. :func:`parse_line` reads one line, says what is wrong with it and is slow.
:func:`parse_block` reads thousands of lines with a handful of array operations, in which NumPy and Arrow
release the interpreter lock, so that threads help; it asks :func:`parse_line` only about blocks that hold a
broken line.

A line may end in CRLF, be indented, use tabs and hold a comment after ``#``; blank lines and lines that are
all comment mean nothing. A label is a number. Feature ids are whole numbers that increase along the line.
Numbers are read as float64 and kept as float32, as ``sklearn.datasets.load_svmlight_file`` does.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Positions = NDArray[np.int64]

MAX_ID = 100_000  # a wider table would be a mistake far more often than a data set; the caller may raise it
LONGEST_ID = 8  # digits: an id is read from the eight bytes before its colon

_NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_MISSING = {b"", b"null", b"none", b"na", b"nan", b"?"}
_INFINITE = {b"inf", b"infinity"}
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_DOCID = r"docid\s*=\s*(?P<docid>\S+)"

_PAD = b"\n" * LONGEST_ID  # before the block, so that eight bytes stand before every colon
_NEWLINE, _SPACE, _HASH, _COLON = b"\n #:"
_OTHER_SPACES = b"\t\r\v\f"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a line may hold, and what becomes of its values."""

    with_qid: bool = True
    missing: bool = False  # a value that is no finite float32 is missing (NaN), not an error
    log1p: bool = False  # values become sign(v) log(1 + |v|)
    max_id: int = MAX_ID


class Line(NamedTuple):
    """One line as :func:`parse_line` understands it."""

    label: float
    qid: bytes | None
    ids: list[int]
    values: list[float]


class BadLine(NamedTuple):
    """A line that breaks the rules."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of some lines, features as the ids and values that were written."""

    labels: NDArray[np.float32]
    lines: NDArray[np.int64]  # the line each row stands in, the first line of the block being 0
    qids: Any  # Arrow strings, None without qid
    docids: Any  # Arrow strings, empty where a line has no comment; None if no line has one
    counts: NDArray[np.int64]  # features written in each row
    ids: NDArray[np.int32]
    values: NDArray[np.float32]
    bad: list[BadLine] = field(default_factory=list)


class _BrokenError(Exception):
    """Some line of the block breaks a rule."""


# --- one line, exactly --------------------------------------------------------------------------------------


def parse_line(line: bytes, rules: Rules) -> Line | None:
    """Read one line; None if nothing stands in it. A broken rule is a `ValueError` that says which.

    >>> parse_line(b"+1 qid:7 1:0.5 3:2e1 # docid = x", Rules())
    Line(label=1.0, qid=b'7', ids=[1, 3], values=[0.5, 20.0])
    """
    body = line.partition(b"#")[0]
    if found := _CONTROL.search(body):
        raise ValueError(f"a control character, {found[0]!r}, stands at byte {found.start() + 1}")
    tokens = body.split()
    if not tokens:
        return None
    label = _label(tokens[0])
    qid = None
    features = tokens[1:]
    if features and features[0].startswith(b"qid:"):
        if not rules.with_qid:
            raise ValueError(f"{_shown(features[0])} stands here, but the lists of this file come without qid")
        qid = features.pop(0)[4:]
        if not qid:
            raise ValueError("nothing stands after 'qid:'")
    elif rules.with_qid:
        raise ValueError("no 'qid:' stands after the label")
    ids: list[int] = []
    values: list[float] = []
    for token in features:
        ids.append(_feature_id(token, ids, rules))
        values.append(_value(token, rules))
    return Line(label, qid, ids, values)


def parse_number(token: bytes) -> float:
    """A number; NaN for a word or sign that stands for a missing one; otherwise `ValueError`.

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
    raise ValueError(f"{_shown(token)} is not a number")


def _label(token: bytes) -> float:
    if not _NUMBER.fullmatch(token) or not math.isfinite(_stored(float(token))):
        raise ValueError(f"the label {_shown(token)} is not a finite number")
    return float(token)


def _feature_id(token: bytes, before: list[int], rules: Rules) -> int:
    text, colon, value = token.partition(b":")
    if not colon:
        raise ValueError(f"{_shown(token)} is not of the form id:value")
    if b":" in value:
        raise ValueError(f"{_shown(token)} holds more than one colon")
    if not (text.isdigit() and text.isascii()):
        raise ValueError(f"the feature id of {_shown(token)} is not a whole number >= 0")
    if len(text) > LONGEST_ID or int(text) > rules.max_id:
        raise ValueError(f"the feature id of {_shown(token)} is above the limit of {rules.max_id} (see --features)")
    if before and int(text) <= before[-1]:
        raise ValueError(f"feature id {int(text)} stands after {before[-1]}; ids must increase along a line")
    return int(text)


def _value(token: bytes, rules: Rules) -> float:
    try:
        value = parse_number(token.partition(b":")[2])
    except ValueError:
        raise ValueError(f"the value of {_shown(token)} is not a number") from None
    if rules.log1p:
        value = math.copysign(math.log1p(abs(value)), value)
    if math.isfinite(_stored(value)):
        return value
    if rules.missing:
        return math.nan
    if math.isfinite(value):
        raise ValueError(f"the value of {_shown(token)} is too large for float32 (see --log1p, --missing-value)")
    raise ValueError(f"the value of {_shown(token)} is missing or not finite (see --missing-value)")


def _stored(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _shown(token: bytes) -> str:
    text = _decode(token)
    return repr(text if len(text) <= 40 else text[:40] + "...")


# --- a block of lines, fast ---------------------------------------------------------------------------------


def parse_block(text: bytes, rules: Rules) -> Block:
    """Read a block of whole lines; broken ones are left out and listed in `bad`.

    >>> block = parse_block(b"1 qid:7 1:0.5 3:2\\n0 qid:7 2:nan\\n", Rules())
    >>> block.labels, block.ids, block.values, block.bad[0].line
    (array([1.], dtype=float32), array([1, 3], dtype=int32), array([0.5, 2. ], dtype=float32), 1)
    """
    if not text.endswith(b"\n"):
        text += b"\n"
    try:
        return _parse(text, rules)
    except _BrokenError:
        good, bad = _sort_out(text, rules)
    return replace(_parse(good, rules), bad=bad)


def _sort_out(text: bytes, rules: Rules) -> tuple[bytes, list[BadLine]]:
    """The text with every broken line blanked, and those lines."""
    lines = text[:-1].split(b"\n")
    bad = []
    for number, line in enumerate(lines):
        try:
            parse_line(line, rules)
        except ValueError as error:
            bad.append(BadLine(number, str(error)))
            lines[number] = b""
    return b"\n".join(lines) + b"\n", bad


def _parse(text: bytes, rules: Rules) -> Block:
    body: Bytes = np.frombuffer(bytearray(_PAD + text), np.uint8)
    bounds = np.flatnonzero(body == _NEWLINE)[len(_PAD) - 1 :]  # line i stands between bounds i and i + 1
    comments = _cut_comments(body, bounds) if b"#" in text else None
    starts, ends = _tokens(body, text)

    tokens_before = np.searchsorted(starts, bounds)
    tokens = np.diff(tokens_before)
    lines = np.flatnonzero(tokens)
    first = tokens_before[lines]
    is_feature = np.ones(len(starts), np.bool_)
    is_feature[first] = False
    qids = None
    if rules.with_qid:
        qids = _cut_qids(body, starts, ends, first, tokens[lines])
        is_feature[first + 1] = False
    labels = _labels(body, starts[first], ends[first])
    counts = tokens[lines] - (2 if rules.with_qid else 1)

    starts, ends = starts[is_feature], ends[is_feature]
    colons = np.flatnonzero(body == _COLON)
    if len(colons) != len(starts) or not ((starts < colons) & (colons < ends)).all():
        raise _BrokenError
    return Block(
        labels=labels,
        lines=lines,
        qids=qids,
        docids=None if comments is None else _docids(*comments, lines),
        counts=counts,
        ids=_feature_ids(body, starts, colons, counts, rules),
        values=_values(body, colons + 1, ends, rules),
    )


def _cut_comments(body: Bytes, bounds: Positions) -> tuple[Positions, Any]:
    """Blank the comments in `body`; the lines they stood in, and their text without the ``#``."""
    marks = np.flatnonzero(body == _HASH)
    lines, first = np.unique(np.searchsorted(bounds, marks) - 1, return_index=True)
    starts, ends = marks[first], bounds[lines + 1]
    text = _strings(body, starts + 1, ends)
    body[spans(starts, ends)] = _SPACE
    return lines, text


def _tokens(body: Bytes, text: bytes) -> tuple[Positions, Positions]:
    """Where the words between white space start and end."""
    for character in _OTHER_SPACES:
        if character in text:
            body[body == character] = _SPACE
    is_space = body <= _SPACE
    if np.count_nonzero(body < _SPACE) != np.count_nonzero(body == _NEWLINE):
        raise _BrokenError  # control characters
    edges = np.flatnonzero(is_space[1:] != is_space[:-1]) + 1
    return edges[0::2], edges[1::2]


def _cut_qids(body: Bytes, starts: Positions, ends: Positions, first: Positions, tokens: Positions) -> Any:
    """The qid of each row, blanked in `body` since it may hold colons."""
    if (tokens < 2).any():
        raise _BrokenError
    start, end = starts[first + 1], ends[first + 1]
    if (end - start <= 4).any():
        raise _BrokenError
    if any((body[start + i] != character).any() for i, character in enumerate(b"qid:")):
        raise _BrokenError
    qids = _strings(body, start + 4, end)
    body[spans(start, end)] = ord("q")
    return qids


def _labels(body: Bytes, starts: Positions, ends: Positions) -> NDArray[np.float32]:
    labels = _float32(_numbers(body, starts, ends))
    if not np.isfinite(labels).all():
        raise _BrokenError
    return labels


def _feature_ids(
    body: Bytes, starts: Positions, colons: Positions, counts: Positions, rules: Rules
) -> NDArray[np.int32]:
    """The digits before each colon as a number."""
    length = colons - starts
    if len(length) == 0:
        return np.empty(0, np.int32)
    if length.max() > LONGEST_ID:
        raise _BrokenError
    words: NDArray[np.uint64] = np.ndarray((len(body) - 7,), "<u8", body.data, strides=(1,))[colons - 8]
    before = ((LONGEST_ID - length) * 8).astype(np.uint64)  # bits of what stands before the digits, the lowest
    digits = words >> before << before
    rows, width = len(counts), int(counts[0])
    dense = len(digits) == rows * width and bool((digits.reshape(rows, width) == digits[:width]).all())
    if dense and bool((counts == width).all()):
        # every row has the same ids: what holds of the first row holds of all
        return np.tile(_checked_ids(digits[:width], before[:width], counts[:1], rules), rows)
    return _checked_ids(digits, before, counts, rules)


def _checked_ids(
    digits: NDArray[np.uint64], before: NDArray[np.uint64], counts: Positions, rules: Rules
) -> NDArray[np.int32]:
    ids = _whole_numbers(digits | _each(ord("0")) >> (np.uint64(64) - before))
    increases = ids[1:] > ids[:-1]
    row_starts = np.cumsum(counts)[:-1]
    increases[row_starts[(row_starts > 0) & (row_starts < len(ids))] - 1] = True
    if not increases.all() or ids.max() > rules.max_id:
        raise _BrokenError
    return ids


def _whole_numbers(digits: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Numbers from words of eight digits, the first one in the lowest byte."""
    # '0'..'9' are 0x30..0x39, the only bytes whose high half is 3 and stays 3 when 6 is added
    high = digits & _each(0xF0) | (digits + _each(0x06) & _each(0xF0)) >> np.uint64(4)
    if (high != _each(0x33)).any():
        raise _BrokenError
    # neighbours are joined into pairs, pairs into fours, fours into the number
    joined = digits & _each(0x0F)
    joined = (joined * np.uint64(10) + (joined >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    joined = (joined * np.uint64(100) + (joined >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    joined = (joined * np.uint64(10_000) + (joined >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return joined.astype(np.int32)


def _each(byte: int) -> np.uint64:
    return np.uint64(byte * 0x0101010101010101)


def _values(body: Bytes, starts: Positions, ends: Positions, rules: Rules) -> NDArray[np.float32]:
    values = _numbers(body, starts, ends)
    if rules.log1p:
        values = np.copysign(np.log1p(np.abs(values)), values)
    stored = _float32(values)
    finite = np.isfinite(stored)
    if not finite.all():
        if not rules.missing:
            raise _BrokenError
        stored[~finite] = np.nan
    return stored


def _float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _numbers(body: Bytes, starts: Positions, ends: Positions) -> NDArray[np.float64]:
    """The numbers that stand between `starts` and `ends`, not finite where they are missing."""
    n = len(starts)
    if n == 0:
        return np.empty(0)
    # What starts with none of - . / 0..9 is not for Arrow; what lies below '-' wraps around to large bytes.
    odd = (body[starts] - ord("-")) > ord("9") - ord("-")
    # The text is cut into number, rest, number, rest, ... with the rests declared null: no byte is copied.
    edges = np.empty(2 * n + 1, np.int32)
    edges[0:-1:2], edges[1::2], edges[-1] = starts, ends, ends[-1]
    is_number = np.zeros(2 * n, np.bool_)
    np.logical_not(odd, out=is_number[::2])
    null_map = np.packbits(is_number, bitorder="little")
    pieces = pa.StringArray.from_buffers(2 * n, *map(pa.py_buffer, (edges, body, null_map)))
    try:
        numbers = pieces.cast(pa.float64())
    except pa.ArrowInvalid:  # a broken number, or one that no float64 can hold
        return _few_numbers(_binary(body, starts, ends))
    values: NDArray[np.float64] = np.frombuffer(numbers.buffers()[1], np.float64)[: 2 * n : 2].copy()
    odd |= ~np.isfinite(values)
    if odd.any():
        values[odd] = _few_numbers(_binary(body, starts[odd], ends[odd]))
    return values


def _few_numbers(tokens: Any) -> NDArray[np.float64]:
    """Numbers by the exact rules, each different spelling once."""
    encoded = tokens.dictionary_encode()
    try:
        numbers = [parse_number(token) for token in encoded.dictionary.to_pylist()]
    except ValueError:
        raise _BrokenError from None
    taken: NDArray[np.float64] = np.array(numbers)[encoded.indices.to_numpy()]
    return taken


# --- text ---------------------------------------------------------------------------------------------------


def spans(starts: Positions, ends: Positions) -> Positions:
    """Every position of the spans, one span after the other.

    >>> spans(np.array([2, 7]), np.array([4, 10]))
    array([2, 3, 7, 8, 9])
    """
    lengths = ends - starts
    shift = starts - (np.cumsum(lengths) - lengths)
    positions: Positions = np.arange(lengths.sum()) + np.repeat(shift, lengths)
    return positions


def _binary(body: Bytes, starts: Positions, ends: Positions) -> Any:
    edges = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(ends - starts, out=edges[1:])
    data = body[spans(starts, ends)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts), [None, *map(pa.py_buffer, (edges, data))])


def _strings(body: Bytes, starts: Positions, ends: Positions) -> Any:
    raw = _binary(body, starts, ends)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decode(text) for text in raw.to_pylist()], pa.string())


def _decode(text: bytes) -> str:
    """UTF-8, or Latin-1 where it is not that: old collections hold both, sometimes in one file."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")


def _docids(comment_lines: Positions, comments: Any, lines: Positions) -> Any:
    """What follows ``docid =`` in the comment of each line, else the whole comment."""
    found = pc.struct_field(pc.extract_regex(comments, _DOCID), "docid")
    docids = pc.coalesce(found, pc.utf8_trim_whitespace(comments))
    place = np.searchsorted(comment_lines, lines)
    absent = comment_lines[np.minimum(place, len(comment_lines) - 1)] != lines
    return pc.fill_null(docids.take(pa.array(place, mask=absent)), "")
