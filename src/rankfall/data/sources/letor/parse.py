"""Ranking text: ``label qid:Q 1:v 2:v ... # comment`` (LETOR, SVMlight, LibSVM), a block of lines at a time.

Two parsers implement the same rules. :func:`parse_line` reads one line, reports what is wrong with it and is slow.
:func:`parse_block` reads thousands of lines with a few array operations, in which NumPy and Arrow release the
interpreter lock, so that threads help; it uses :func:`parse_line` only for blocks with an invalid line.

A line may end in CRLF, be indented, use tabs and have a comment after ``#``; blank lines and lines with only a comment
are skipped. A label is a number. Feature ids are whole numbers that increase along the line. Numbers are parsed as
float64 and stored as float32, as ``sklearn.datasets.load_svmlight_file`` does.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import math
import re
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankfall.data.arrays import spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Positions = NDArray[np.int64]

MAX_ID = 100_000  # larger ids are usually mistakes; callers may raise the limit
LONGEST_ID = 8  # digits: an id is read from the eight bytes before its colon

_NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_MISSING = {b"", b"null", b"none", b"na", b"nan", b"?"}
_INFINITE = {b"inf", b"infinity"}
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_DOCID = r"docid\s*=\s*(?P<docid>\S+)"

_PAD = b"\n" * LONGEST_ID  # before the block, so that every colon has eight bytes before it
_NEWLINE, _SPACE, _HASH, _COLON = b"\n #:"
_OTHER_SPACES = b"\t\r\v\f"


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
    qids: Any  # Arrow strings, None without qid
    docids: Any  # Arrow strings, empty for lines without a comment; None if no line has one
    counts: NDArray[np.int64]  # the number of features of each row
    ids: NDArray[np.int32]
    values: NDArray[np.float32]
    bad: list[BadLine] = field(default_factory=list)


class _BrokenError(Exception):
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
        raise ValueError(f"found a control character, {found[0]!r}, at byte {found.start() + 1}")
    tokens = body.split()
    if not tokens:
        return None
    label = _label(tokens[0])
    qid = None
    features = tokens[1:]
    if features and features[0].startswith(b"qid:"):
        if not rules.with_qid:
            raise ValueError(f"found {_shown(features[0])}, but the lists of this file come without qid")
        qid = features.pop(0)[4:]
        if not qid:
            raise ValueError("found no id after 'qid:'")
    elif rules.with_qid:
        raise ValueError("found no 'qid:' after the label")
    ids: list[int] = []
    values: list[float] = []
    for token in features:
        ids.append(_feature_id(token, ids, rules))
        values.append(_value(token, rules))
    return Line(label, qid, ids, values)


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
        raise ValueError(f"{_shown(token)} has more than one colon")
    if not (text.isdigit() and text.isascii()):
        raise ValueError(f"the feature id of {_shown(token)} is not a whole number >= 0")
    if len(text) > LONGEST_ID or int(text) > rules.max_id:
        raise ValueError(f"the feature id of {_shown(token)} is above the limit of {rules.max_id} (see --features)")
    if before and int(text) <= before[-1]:
        raise ValueError(f"found feature id {int(text)} after {before[-1]}; ids must increase along a line")
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


def parse_block(text: bytes, rules: Rules) -> ParsedBlock:
    """Parse a block of whole lines; invalid lines are left out and listed in `bad`.

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
    """Return the text with every invalid line blanked, and these lines."""
    lines = text[:-1].split(b"\n")
    bad = []
    for number, line in enumerate(lines):
        try:
            parse_line(line, rules)
        except ValueError as error:
            bad.append(BadLine(number, str(error)))
            lines[number] = b""
    return b"\n".join(lines) + b"\n", bad


def _parse(text: bytes, rules: Rules) -> ParsedBlock:
    body: Bytes = np.frombuffer(bytearray(_PAD + text), np.uint8)
    bounds = np.flatnonzero(body == _NEWLINE)[len(_PAD) - 1 :]  # line i is between bounds i and i + 1
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
    return ParsedBlock(
        labels=labels,
        lines=lines,
        qids=qids,
        docids=None if comments is None else _docids(*comments, lines),
        counts=counts,
        ids=_feature_ids(body, starts, colons, counts, rules),
        values=_values(body, colons + 1, ends, rules),
    )


def _cut_comments(body: Bytes, bounds: Positions) -> tuple[Positions, Any]:
    """Blank the comments in `body`; return their lines, and their text without the ``#``."""
    marks = np.flatnonzero(body == _HASH)
    lines, first = np.unique(np.searchsorted(bounds, marks) - 1, return_index=True)
    starts, ends = marks[first], bounds[lines + 1]
    text = _strings(body, starts + 1, ends)
    body[spans(starts, ends - starts)] = _SPACE
    return lines, text


def _tokens(body: Bytes, text: bytes) -> tuple[Positions, Positions]:
    """Return where the words between white space start and end."""
    for character in _OTHER_SPACES:
        if character in text:
            body[body == character] = _SPACE
    is_space = body <= _SPACE
    if np.count_nonzero(body < _SPACE) != np.count_nonzero(body == _NEWLINE):
        raise _BrokenError  # control characters
    edges = np.flatnonzero(is_space[1:] != is_space[:-1]) + 1
    return edges[0::2], edges[1::2]


def _cut_qids(body: Bytes, starts: Positions, ends: Positions, first: Positions, tokens: Positions) -> Any:
    """Return the qid of each row and blank it in `body`, since it may contain colons."""
    if (tokens < 2).any():
        raise _BrokenError
    start, end = starts[first + 1], ends[first + 1]
    if (end - start <= 4).any():
        raise _BrokenError
    if any((body[start + i] != character).any() for i, character in enumerate(b"qid:")):
        raise _BrokenError
    qids = _strings(body, start + 4, end)
    body[spans(start, end - start)] = ord("q")
    return qids


def _labels(body: Bytes, starts: Positions, ends: Positions) -> NDArray[np.float32]:
    labels = _float32(_numbers(body, starts, ends))
    if not np.isfinite(labels).all():
        raise _BrokenError
    return labels


def _feature_ids(
    body: Bytes, starts: Positions, colons: Positions, counts: Positions, rules: Rules
) -> NDArray[np.int32]:
    """Return the digits before each colon as a number."""
    length = colons - starts
    if len(length) == 0:
        return np.empty(0, np.int32)
    if length.max() > LONGEST_ID:
        raise _BrokenError
    words: NDArray[np.uint64] = np.ndarray((len(body) - 7,), "<u8", body.data, strides=(1,))[colons - 8]
    before = ((LONGEST_ID - length) * 8).astype(np.uint64)  # bits before the digits, the lowest ones
    digits = words >> before << before
    rows, width = len(counts), int(counts[0])
    dense = len(digits) == rows * width and bool((digits.reshape(rows, width) == digits[:width]).all())
    if dense and bool((counts == width).all()):
        # every row has the same ids, so checking the first row checks all
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
    """Convert words of eight digits, the first one in the lowest byte, to numbers."""
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
    """Parse the numbers between `starts` and `ends`; missing ones are not finite."""
    n = len(starts)
    if n == 0:
        return np.empty(0)
    # Numbers that start with none of - . / 0..9 are not for Arrow; bytes below '-' wrap around to large ones.
    odd = (body[starts] - ord("-")) > ord("9") - ord("-")
    # The text is cut into number, rest, number, rest, ... and the rests are declared null, so no byte is copied.
    edges = np.empty(2 * n + 1, np.int32)
    edges[0:-1:2], edges[1::2], edges[-1] = starts, ends, ends[-1]
    is_number = np.zeros(2 * n, np.bool_)
    np.logical_not(odd, out=is_number[::2])
    null_map = np.packbits(is_number, bitorder="little")
    pieces = pa.StringArray.from_buffers(2 * n, *map(pa.py_buffer, (edges, body, null_map)))
    try:
        numbers = pieces.cast(pa.float64())
    except pa.ArrowInvalid:  # an invalid number, or one that exceeds float64
        return _few_numbers(_binary(body, starts, ends))
    values: NDArray[np.float64] = np.frombuffer(numbers.buffers()[1], np.float64)[: 2 * n : 2].copy()
    odd |= ~np.isfinite(values)
    if odd.any():
        values[odd] = _few_numbers(_binary(body, starts[odd], ends[odd]))
    return values


def _few_numbers(tokens: Any) -> NDArray[np.float64]:
    """Parse numbers by the exact rules, each different spelling once."""
    encoded = tokens.dictionary_encode()
    try:
        numbers = [parse_number(token) for token in encoded.dictionary.to_pylist()]
    except ValueError:
        raise _BrokenError from None
    taken: NDArray[np.float64] = np.array(numbers)[encoded.indices.to_numpy()]
    return taken


# --- text ---------------------------------------------------------------------------------------------------


def _binary(body: Bytes, starts: Positions, ends: Positions) -> Any:
    edges = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(ends - starts, out=edges[1:])
    data = body[spans(starts, ends - starts)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts), [None, *map(pa.py_buffer, (edges, data))])


def _strings(body: Bytes, starts: Positions, ends: Positions) -> Any:
    raw = _binary(body, starts, ends)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decode(text) for text in raw.to_pylist()], pa.string())


def _decode(text: bytes) -> str:
    """Decode UTF-8, or Latin-1 if that fails: old collections have both, sometimes in one file."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")


def _docids(comment_lines: Positions, comments: Any, lines: Positions) -> Any:
    """Return the text after ``docid =`` in the comment of each line, else the whole comment."""
    found = pc.struct_field(pc.extract_regex(comments, _DOCID), "docid")
    docids = pc.coalesce(found, pc.utf8_trim_whitespace(comments))
    place = np.searchsorted(comment_lines, lines)
    absent = comment_lines[np.minimum(place, len(comment_lines) - 1)] != lines
    return pc.fill_null(docids.take(pa.array(place, mask=absent)), "")


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
        check(self.min_list >= 1, "min_list", self.min_list, "at least 1")
        check(self.keep_positives >= 0, "keep_positives", self.keep_positives, "at least 0")
        check(self.first_id in (None, 0, 1), "first_id", self.first_id, "0, 1 or None")
        check(self.seed >= 0, "seed", self.seed, "at least 0")
        if self.max_list is not None:
            check(
                self.max_list >= self.min_list,
                "max_list",
                self.max_list,
                f"at least min_list, {self.min_list}",
            )
        if self.features is not None:
            check(1 <= self.features < 10**8, "features", self.features, "from 1 to 99999999")
        if self.missing_value is None:
            check(not self.missing_indicator, "missing_indicator", True, "given together with missing_value")
        else:
            finite = bool(np.isfinite(np.float32(self.missing_value)))
            check(finite, "missing_value", self.missing_value, "a finite number")


def check(holds: bool, name: str, found: object, allowed: str) -> None:
    """Raise an error with the found and the allowed value if a condition does not hold."""
    if not holds:
        raise ValueError(f"{name}: expected {allowed}, found {found}")


BLOCK_BYTES = 2 << 20  # large enough to spend the time in array operations, small enough for the cache
LONGEST_LINE = 64 << 20  # a file with longer lines is not a text file

_MARKS = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextFile:
    """A file to read. After the last block, `bytes` and `sha256` describe the file as it is stored.

    Args:
        path: The file; gzip, xz and zstd are recognised by its first bytes.
        on_read: Receives the number of bytes read.
    """

    def __init__(self, path: Path, on_read: Callable[[int], None] = lambda n: None) -> None:
        self.path = path
        self.bytes = 0
        self._digest = hashlib.sha256()
        self._on_read = on_read

    @property
    def sha256(self) -> str:
        """The checksum of the bytes read."""
        return self._digest.hexdigest()

    def blocks(self) -> Iterator[bytes]:
        """Iterate over the text in blocks of whole lines, each with its last newline."""
        with (
            self.path.open("rb") as file,
            io.BufferedReader(_Counted(file, self._count), 1 << 20) as stored,
            _unpacked(stored, self.path) as text,
        ):
            yield from _whole_lines(text, self.path)
            while stored.read(BLOCK_BYTES):  # bytes after the compressed data belong to the checksum, too
                pass

    def _count(self, data: memoryview) -> None:
        self.bytes += len(data)
        self._digest.update(data)
        self._on_read(len(data))


class _Counted(io.RawIOBase):
    """A file that passes everything read from it to a function."""

    def __init__(self, file: IO[bytes], show: Callable[[memoryview], None]) -> None:
        self._file = file
        self._show = show

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = cast("io.BufferedReader", self._file).readinto(buffer)
        self._show(memoryview(buffer)[:count])
        return count


@contextmanager
def _unpacked(packed: io.BufferedReader[Any], path: Path) -> Iterator[IO[bytes]]:
    """Decompress a file according to its first bytes."""
    start = packed.peek(8)
    kind = next((kind for mark, kind in _MARKS.items() if start.startswith(mark)), None)
    try:
        if kind == "gzip":
            with gzip.open(packed) as text:
                yield cast("IO[bytes]", text)
        elif kind == "xz":
            with lzma.open(packed) as text:
                yield text
        elif kind == "zstd":
            with pa.CompressedInputStream(pa.PythonFile(packed, "r"), "zstd") as text:
                yield text
        else:
            yield packed
    except (EOFError, OSError, zlib.error, lzma.LZMAError, pa.ArrowInvalid) as error:
        if getattr(error, "errno", None) is not None:
            raise  # errors of the operating system have a number, those of damaged data have none
        raise ValueError(f"{path}: damaged or truncated ({error})") from error


def _whole_lines(text: IO[bytes], path: Path) -> Iterator[bytes]:
    parts: list[bytes] = []  # of an incomplete line
    chunk = text.read(BLOCK_BYTES).removeprefix(_BYTE_ORDER_MARK)
    while chunk:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*parts, chunk[:cut]])
            parts.clear()
        parts.append(chunk[cut:])
        if sum(map(len, parts)) > LONGEST_LINE:
            raise ValueError(
                f"{path}: found a line of more than {LONGEST_LINE >> 20} MB, expected a text file of lines"
            )
        chunk = text.read(BLOCK_BYTES)
    if any(parts):
        yield b"".join([*parts, b"\n"])
