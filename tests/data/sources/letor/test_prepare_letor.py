"""Ranking text becomes prepared data: the parser, the reader, the recipe, the files, the command."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file
from typer.testing import CliRunner

from rankfall.commands.prepare import app
from rankfall.data import Moments, RankingData, Recipe, prepare_letor
from rankfall.data.sources.letor import parse as source_module
from rankfall.data.sources.letor import prepare_letor as preparation
from rankfall.data.sources.letor.parse import Line, Rules, parse_block, parse_line, read_blocks
from rankfall.data.sources.letor.prepare_letor import sample, sample_with_replacement
from rankfall.storage import disk as _disk

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

REAL = os.environ.get("RANKFALL_DATA")
needs_real = pytest.mark.skipif(REAL is None, reason="RANKFALL_DATA does not name a folder of real ranking data")


# --- writing test data --------------------------------------------------------------------------------------


def dense_text(lists: int = 30, features: int = 7, seed: int = 0, docids: bool = False) -> str:
    """Lists of 1 to 60 documents, every feature written, values of all sizes and signs."""
    rng = np.random.default_rng(seed)
    lines = []
    for qid in range(lists):
        for document in range(int(rng.integers(1, 60))):
            values = rng.normal(size=features) * 10.0 ** rng.integers(-8, 8, size=features)
            written = " ".join(f"{i + 1}:{value:.6g}" for i, value in enumerate(values))
            comment = f" #docid = D{qid}-{document} inc = 1" if docids else ""
            lines.append(f"{rng.integers(0, 5)} qid:{qid} {written}{comment}")
    return "\n".join(lines) + "\n"


def sparse_text(lists: int = 30, features: int = 300, seed: int = 0, qid: bool = True) -> str:
    rng = np.random.default_rng(seed)
    lines = []
    for number in range(lists):
        for _ in range(int(rng.integers(1, 20))):
            ids = np.flatnonzero(rng.random(features) < 0.1) + 1
            words = [str(rng.integers(0, 3))] + ([f"qid:{number}"] if qid else [])
            lines.append(" ".join([*words, *(f"{i}:{rng.normal():.4f}" for i in ids)]))
    return "\n".join(lines) + "\n"


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture
def prepare(tmp_path: Path) -> Callable[..., RankingData]:
    """Prepare text as the split "train" (or texts by split) with the options of a recipe."""

    def run(text: str | bytes | dict[str, str | bytes], *, threads: int = 1, **recipe: Any) -> RankingData:
        texts = text if isinstance(text, dict) else {"train": text}
        folder = tmp_path / f"prepared-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        sources = {name: [write(folder / f"{name}.txt", content)] for name, content in texts.items()}
        return prepare_letor(sources, folder / "out", Recipe(**recipe), threads=threads)

    return run


def bytes_of(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


# --- the two parsers ----------------------------------------------------------------------------------------


def assert_same_as_line_by_line(text: bytes, rules: Rules) -> None:
    """The fast parser says of a block what the exact parser says of each of its lines."""
    block = parse_block(text, rules)
    good: list[tuple[int, Line]] = []
    bad = []
    for number, line in enumerate(text.removesuffix(b"\n").split(b"\n")):
        try:
            parsed = parse_line(line, rules)
        except ValueError as error:
            bad.append((number, str(error)))
        else:
            if parsed is not None:
                good.append((number, parsed))
    assert list(block.bad) == bad
    assert block.lines.tolist() == [number for number, _ in good]
    assert np.array_equal(block.labels, np.array([line.label for _, line in good], np.float32))
    assert block.counts.tolist() == [len(line.ids) for _, line in good]
    assert block.ids.tolist() == [i for _, line in good for i in line.ids]
    expected = np.array([value for _, line in good for value in line.values], np.float32)
    np.testing.assert_array_max_ulp(block.values[~np.isnan(expected)], expected[~np.isnan(expected)], 1)
    assert np.array_equal(np.isnan(block.values), np.isnan(expected))
    if rules.with_qid:
        assert block.qids is not None
        assert [qid.encode() for qid in block.qids.to_list()] == [line.qid for _, line in good]


NUMBERS = [
    "0",
    "-0",
    "+1",
    "1.",
    ".5",
    "-.5",
    "2.5e-3",
    "1E5",
    "1e+5",
    "007",
    "1e999",
    "-1e400",
    "1e-400",
    "4e38",
]
ODD_NUMBERS = [
    "NULL",
    "null",
    "NaN",
    "-nan",
    "inf",
    "-Infinity",
    "?",
    "",
    "1e",
    "1.2.3",
    "--1",
    "0x10",
    "1_0",
    ".",
]
WORDS = st.one_of(
    st.sampled_from(NUMBERS + ODD_NUMBERS),
    st.floats(allow_nan=False).map(repr),
    st.decimals(-1000, 1000, places=6).map(str),
)
IDS = st.one_of(
    st.integers(0, 12).map(str),
    st.sampled_from(["99999999", "100000000", "100000", "100001", "0012", "-1", "+1", "", "a", "1a", "/1", ";"]),
)
SPACES = st.sampled_from([" ", "  ", "\t", " \t "])


@st.composite
def any_line(draw: st.DrawFn) -> str:
    """A line that is mostly right, or any short text."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.text(st.characters(codec="latin-1", exclude_characters="\n"), max_size=12))
    words = [draw(st.sampled_from(["0", "1", "+2", "0.5", "-1", "x", "nan", "1e99"]))]
    words += draw(st.sampled_from([["qid:1"], ["qid:a:b"], ["qid:"], ["qid:é"], []]))
    if draw(st.booleans()):
        values = draw(st.lists(st.sampled_from(NUMBERS[:10]), max_size=5))
        words += [f"{i + 1}:{value}" for i, value in enumerate(values)]
    else:
        words += [f"{draw(IDS)}:{draw(WORDS)}" for _ in range(draw(st.integers(0, 4)))]
    comment = draw(st.sampled_from(["", "", "#", "# docid = x", " # 1:2 # y", "\r"]))
    return draw(st.sampled_from(["", " "])) + draw(SPACES).join(words) + comment


@pytest.mark.slow
@pytest.mark.witness("brute force", "prepare_letor")
@settings(max_examples=400)
@given(
    lines=st.lists(any_line(), max_size=6),
    ending=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "latin-1"]),
    rules=st.builds(Rules, with_qid=st.booleans(), missing=st.booleans(), log1p=st.booleans()),
)
def test_fast_and_exact_parser_agree(lines: list[str], ending: str, encoding: str, rules: Rules) -> None:
    text = (ending.join(lines) + ending).encode(encoding)
    if rules.with_qid and encoding == "latin-1":
        text = text.replace("qid:é".encode("latin-1"), b"qid:e")  # bytes and text of such a qid differ
    assert_same_as_line_by_line(text, rules)


@pytest.mark.parametrize(
    ("line", "label", "ids", "values"),
    [
        ("1 qid:3 1:2 4:-0.5", 1, [1, 4], [2, -0.5]),
        ("+1 qid:3 1:2", 1, [1], [2]),
        ("-2.25 qid:3 1:+2", -2.25, [1], [2]),
        ("1e1 qid:3 1:1.5E-2", 10, [1], [0.015]),
        ("  1\tqid:3  1:2\t ", 1, [1], [2]),
        ("1 qid:3 1:2\r", 1, [1], [2]),
        ("1 qid:3 0:7 1:2", 1, [0, 1], [7, 2]),
        ("1 qid:3", 1, [], []),
        ("1 qid:3 1:2#docid = x", 1, [1], [2]),
        ("1 qid:3 001:2", 1, [1], [2]),
        ("1 qid:3 99999:.5", 1, [99999], [0.5]),
    ],
)
@pytest.mark.witness("hand", "prepare_letor")
def test_lines_by_hand(line: str, label: float, ids: list[int], values: list[float]) -> None:
    for text in (line, line + "\n", "\n# note\n" + line + "\n\n"):
        block = parse_block(text.encode(), Rules())
        assert block.labels.tolist() == [label]
        assert block.ids.tolist() == ids
        assert block.values.tolist() == [np.float32(value) for value in values]
        assert block.qids is not None
        assert block.qids.to_list() == ["3"]


BROKEN = [
    ("x qid:1 1:2", "the label 'x' is not a finite number"),
    ("nan qid:1 1:2", "the label 'nan'"),
    ("1e39 qid:1 1:2", "the label '1e39'"),
    ("1 1:2", "found no 'qid:' after the label"),
    ("1 qid: 1:2", "found no id after 'qid:'"),
    ("1 qid:1 1", "'1' is not of the form id:value"),
    ("1 qid:1 1:2:3", "'1:2:3' has more than one colon"),
    ("1 qid:1 -1:2", "the feature id of '-1:2' is not a whole number"),
    ("1 qid:1 a:2", "the feature id of 'a:2' is not a whole number"),
    ("1 qid:1 1:2 1:3", "feature id 1 after 1"),
    ("1 qid:1 2:2 1:3", "feature id 1 after 2"),
    ("1 qid:1 100001:2", "above the limit of 100000"),
    ("1 qid:1 123456789:2", "above the limit of 100000"),
    ("1 qid:1 1:two", "the value of '1:two' is not a number"),
    ("1 qid:1 1:1_0", "the value of '1:1_0' is not a number"),
    ("1 qid:1 1:NULL", "missing or not finite"),
    ("1 qid:1 1:", "missing or not finite"),
    ("1 qid:1 1:inf", "missing or not finite"),
    ("1 qid:1 1:1e39", "too large for float32"),
    ("1 qid:1 1:2\x00", "a control character"),
]


@pytest.mark.parametrize(("line", "reason"), BROKEN)
def test_a_broken_line_is_named(prepare: Callable[..., RankingData], line: str, reason: str) -> None:
    text = f"1 qid:1 1:2\n\n{line}\n0 qid:1 1:5\n"
    with pytest.raises(ValueError, match=r"train\.txt:3: ") as caught:
        prepare(text)
    assert reason in str(caught.value)
    data = prepare(text, skip_bad_lines=True)
    assert data["train"].features.tolist() == [[2], [5]]
    source = data.manifest["splits"]["train"]["sources"][0]
    assert (source["bad_lines"], source["lines"], source["rows"]) == (1, 4, 2)
    assert source["bad_lines_shown"][0]["line"] == 3


@pytest.mark.parametrize("block_bytes", [40, 1000, 2 << 20])
def test_line_numbers_across_blocks(
    prepare: Callable[..., RankingData], monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(source_module, "BLOCK_BYTES", block_bytes)
    good = ["1 qid:1 1:2"] * 400
    good[321] = "1 qid:1 1:2 broken"
    with pytest.raises(ValueError, match=r"train\.txt:322: 'broken'"):
        prepare("\n".join(good), threads=3)


# --- against scikit-learn -----------------------------------------------------------------------------------


def assert_equals_sklearn(path: Path, data: RankingData, split: str, qids: bool) -> None:
    features, labels, *queries = load_svmlight_file(str(path), query_id=qids, dtype=np.float32)
    ours = data[split]
    assert np.array_equal(ours.features.view(np.uint32), features.toarray().view(np.uint32))
    assert np.array_equal(ours.labels, labels.astype(np.float32))
    if qids:
        repeated = np.repeat(ours.qids.to_pylist(), np.diff(ours.offsets))
        assert repeated.tolist() == [str(qid) for qid in queries[0]]


@pytest.mark.witness("scikit-learn", "prepare_letor")
@pytest.mark.parametrize("text", [dense_text(docids=True), sparse_text(), dense_text().replace("\n", " \r\n")])
def test_bits_of_scikit_learn(prepare: Callable[..., RankingData], text: str) -> None:
    data = prepare(text)
    assert_equals_sklearn(data.path.parent / "train.txt", data, "train", qids=True)


@pytest.mark.slow
@needs_real
@pytest.mark.witness("scikit-learn", "prepare_letor")
@pytest.mark.parametrize(
    ("file", "qids"),
    [
        ("mq2007/features46_S1.txt.gz", True),
        ("mslr_sample/mslr_sample.txt.gz", True),
        ("clueweb09/fold1.txt.gz", True),
        ("lightgbm_rank/rank.train.gz", False),
    ],
)
def test_bits_of_scikit_learn_on_real_data(tmp_path: Path, file: str, qids: bool) -> None:
    path = Path(str(REAL)) / file
    data = prepare_letor({"real": [path]}, tmp_path / "out", Recipe(), threads=2)
    # sklearn reads a file without an id 0 as counted from 1, as we do
    assert_equals_sklearn(path, data, "real", qids)


@needs_real
def test_docids_and_missing_values_of_real_data(tmp_path: Path) -> None:
    path = Path(str(REAL)) / "mq2007" / "systems21_S1.txt.gz"
    recipe = Recipe(missing_value=-1.0, missing_indicator=True)
    split = prepare_letor({"S1": [path]}, tmp_path / "out", recipe)["S1"]
    with gzip.open(path, "rt") as file:
        lines = file.read().splitlines()
    missing = [[word.endswith(":NULL") for word in line.split("#")[0].split()[2:]] for line in lines]
    assert split.docids is not None
    assert split.docids.to_pylist() == [line.split("docid = ")[1].split()[0] for line in lines]
    assert np.array_equal(split.features[:, :21] == -1, missing)
    assert np.array_equal(split.features[:, 21:], missing)


# --- reading ------------------------------------------------------------------------------------------------


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "txt": bytes,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstd,
}


@pytest.mark.parametrize("packer", PACKERS)
def test_compressed_files(tmp_path: Path, packer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 5000)
    text = dense_text().encode()
    half = text.index(b"\n", len(text) // 2) + 1
    # two compressed streams one after the other are one file
    stored = PACKERS[packer](text[:half]) + PACKERS[packer](text[half:].removesuffix(b"\n"))
    read: list[int] = []
    assert b"".join(read_blocks(write(tmp_path / "data", stored), read.append)) == text
    assert sum(read) == len(stored)


@pytest.mark.parametrize(
    ("packer", "damage"),
    # a change inside a zstd stream shows only if its writer added a checksum, which Arrow does not
    [("gz", "cut"), ("xz", "cut"), ("zst", "cut"), ("gz", "changed"), ("xz", "changed")],
)
def test_damaged_files(tmp_path: Path, packer: str, damage: str) -> None:
    stored = bytearray(PACKERS[packer](dense_text().encode()))
    if damage == "cut":
        del stored[len(stored) // 2 :]
    else:
        middle = slice(len(stored) // 2, len(stored) // 2 + 50)
        stored[middle] = bytes(byte ^ 255 for byte in stored[middle])
    with pytest.raises(ValueError, match=r"data\.txt: damaged or truncated"):
        list(read_blocks(write(tmp_path / "data.txt", bytes(stored))))


def test_comments_keep_document_ids(prepare: Callable[..., RankingData]) -> None:
    lines = [
        b"# a comment alone",
        b"1 qid:1 1:2 #docid = GX-1 inc = 1 prob = .5",
        b"1 qid:1 1:2 # docid=GX-2 ",
        b"1 qid:1 1:2 # any note # twice\t",
        b"1 qid:1 1:2",
        "1 qid:1 1:2 # docid = über".encode(),
        "1 qid:1 1:2 # docid = über".encode("latin-1"),
        b"1 qid:1 1:2 #",
    ]
    split = prepare(b"\xef\xbb\xbf" + b"\r\n".join(lines))["train"]
    assert split.docids is not None
    assert split.docids.to_pylist() == ["GX-1", "GX-2", "any note # twice", "", "über", "über", ""]
    assert prepare("1 qid:1 1:2\n")["train"].docids is None


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_nothing_to_read(prepare: Callable[..., RankingData], text: str) -> None:
    with pytest.raises(ValueError, match=r"train\.txt: split 'train' has no rows"):
        prepare(text)


def test_no_features(prepare: Callable[..., RankingData]) -> None:
    with pytest.raises(ValueError, match="found no feature in any line"):
        prepare("1 qid:1\n")


@pytest.mark.parametrize(
    ("text", "options", "first_id", "features"),
    [
        ("1 qid:1 1:2 3:4\n", {}, 1, [[2, 0, 4]]),
        ("1 qid:1 0:2 2:4\n", {}, 0, [[2, 0, 4]]),
        ("1 qid:1 1:2 3:4\n", {"first_id": 0}, 0, [[0, 2, 0, 4]]),
        ("1 qid:1 1:2 3:4\n", {"features": 5}, 1, [[2, 0, 4, 0, 0]]),
        ("1 qid:1 5:2\n0 qid:1 0:3\n", {}, 0, [[0, 0, 0, 0, 0, 2], [3, 0, 0, 0, 0, 0]]),
    ],
)
def test_feature_ids(
    prepare: Callable[..., RankingData], text: str, options: dict[str, int], first_id: int, features: Any
) -> None:
    data = prepare(text, **options)
    assert data["train"].features.tolist() == features
    assert data.manifest["features"]["first_id"] == first_id
    assert data.features == len(features[0])


def test_splits_share_their_columns(prepare: Callable[..., RankingData]) -> None:
    data = prepare({"train": "1 qid:1 1:2\n", "test": "1 qid:2 3:2\n"})
    assert data["train"].features.tolist() == [[2, 0, 0]]
    assert data["test"].features.tolist() == [[0, 0, 2]]
    assert list(data) == ["train", "test"]
    with pytest.raises(ValueError, match="no split 'valid'; it has train, test"):
        data["valid"]


def test_sparse_and_dense_blocks_make_one_table(
    prepare: Callable[..., RankingData], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = dense_text(features=5) + sparse_text(features=40).replace("qid:", "qid:s")
    whole = prepare(text)
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 300)
    monkeypatch.setattr(preparation, "CHUNK_BYTES", 4 * 40 * 3)
    pieces = prepare(text, threads=2)
    assert whole["train"].features.shape[1] == 40
    assert np.array_equal(whole["train"].features, pieces["train"].features)
    assert np.array_equal(whole["train"].labels, pieces["train"].labels)
    assert np.array_equal(whole["train"].offsets, pieces["train"].offsets)


# --- lists --------------------------------------------------------------------------------------------------


def test_queries_apart(prepare: Callable[..., RankingData]) -> None:
    text = "1 qid:a 1:1\n2 qid:a 1:2\n\n3 qid:b 1:3\n4 qid:a 1:4\n5 qid:c 1:5\n6 qid:b 1:6\n"
    with pytest.raises(ValueError, match=r"train.txt:5: query 'a' starts again here.*; it begins in line 1 of .*train"):
        prepare(text)
    split = prepare(text, regroup=True)["train"]
    assert split.qids.to_pylist() == ["a", "b", "c"]
    assert split.offsets.tolist() == [0, 3, 5, 6]
    assert split.labels.tolist() == split.features[:, 0].tolist() == [1, 2, 4, 3, 6, 5]


@pytest.mark.witness("brute force", "prepare_letor")
def test_regrouping_is_a_stable_sort(prepare: Callable[..., RankingData], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 500)
    lines = (sparse_text(features=9) + dense_text(features=9, docids=True)).splitlines()
    shuffled = [lines[i] for i in np.random.default_rng(0).permutation(len(lines))]
    order: dict[str, list[str]] = {}
    for line in shuffled:
        order.setdefault(line.split()[1], []).append(line)
    together = "\n".join(line for group in order.values() for line in group)
    ours, expected = prepare("\n".join(shuffled), regroup=True)["train"], prepare(together)["train"]
    assert np.array_equal(ours.features, expected.features)
    assert np.array_equal(ours.labels, expected.labels)
    assert np.array_equal(ours.offsets, expected.offsets)
    assert ours.qids.equals(expected.qids)
    assert ours.docids is not None
    assert ours.docids.equals(expected.docids)


def test_files_of_a_split_are_read_as_one(tmp_path: Path) -> None:
    first = write(tmp_path / "a", "1 qid:1 1:1\n1 qid:2 1:2\n")
    second = write(tmp_path / "b", "1 qid:2 1:3\n1 qid:3 1:4\n")
    split = prepare_letor({"train": [first, second]}, tmp_path / "out", Recipe())["train"]
    assert split.qids.to_pylist() == ["1", "2", "3"]
    assert split.offsets.tolist() == [0, 1, 3, 4]
    with pytest.raises(ValueError, match=r"b:1: query '2' .* line 2 of .*a' "):
        prepare_letor({"train": [first, second, second]}, tmp_path / "out2", Recipe())


def test_group_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 16)
    rows = [f"{i} 1:{i}" for i in range(6)]
    data = write(tmp_path / "rank.train.gz", gzip.compress("\n".join(rows).encode()))
    write(tmp_path / "rank.train.query", "2\n1\n\n3\n")
    split = prepare_letor({"train": [data]}, tmp_path / "out", Recipe())["train"]
    assert split.offsets.tolist() == [0, 2, 3, 6]
    assert split.qids.to_pylist() == ["0", "1", "2"]
    named = {data: write(tmp_path / "sizes", "6")}
    split = prepare_letor({"train": [data]}, tmp_path / "named", Recipe(), groups=named)["train"]
    assert split.offsets.tolist() == [0, 6]


def test_a_skipped_line_keeps_its_place_in_its_group(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "1 1:1\nbroken\n1 1:3\n1 1:4\n")
    write(tmp_path / "data.group", "2\n2\n")
    split = prepare_letor({"train": [data]}, tmp_path / "out", Recipe(skip_bad_lines=True))["train"]
    assert split.offsets.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("2\n", r"add up to 2, but .*data has more lines"),
        ("2\n2\n", r"add up to 4, but .*data has 3 lines"),
        ("2\n0\n1\n", r"data\.query:2: found the group size '0', expected a whole number above 0"),
        ("2\nx\n", r"data\.query:2: found the group size 'x'"),
        ("", r"add up to 0"),
        (None, r"data: found lines without qid and no file of group sizes .*data\.query"),
    ],
)
def test_wrong_group_sizes(tmp_path: Path, sizes: str | None, message: str) -> None:
    data = write(tmp_path / "data", "1 1:1\n1 1:2\n1 1:3\n")
    if sizes is not None:
        write(tmp_path / "data.query", sizes)
    with pytest.raises(ValueError, match=message):
        prepare_letor({"train": [data]}, tmp_path / "out", Recipe())


def test_qid_in_a_file_with_group_sizes(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "1 qid:1 1:1\n")
    with pytest.raises(ValueError, match="data:1: found 'qid:1', but the lists of this file come without"):
        prepare_letor({"a": [data]}, tmp_path / "out", Recipe(), groups={data: write(tmp_path / "sizes", "1")})


# --- the recipe ---------------------------------------------------------------------------------------------


def lists_of(sizes: list[int], positives: list[int]) -> str:
    """Lists whose first documents are the positives; the feature is the place in the list."""
    return "".join(
        f"{int(i < good)} qid:{qid} 1:{i}\n"
        for qid, (size, good) in enumerate(zip(sizes, positives, strict=True))
        for i in range(size)
    )


def test_list_lengths_as_in_arf(prepare: Callable[..., RankingData]) -> None:
    data = prepare(
        lists_of([40, 41, 200, 1000, 1000, 300], [5, 5, 5, 30, 4, 300]),
        min_list=41,
        max_list=200,
        keep_positives=15,
    )
    split = data["train"]
    assert split.qids.to_pylist() == ["1", "2", "3", "4", "5"]
    assert np.diff(split.offsets).tolist() == [41, 200, 200, 200, 200]
    positives = np.add.reduceat(split.labels, split.offsets[:-1])
    assert positives[2] >= 15  # by chance there would be 6
    assert positives[3] == 4
    assert positives[4] == 200
    for low, high in zip(split.offsets, split.offsets[1:], strict=False):
        assert (np.diff(split.features[low:high, 0]) > 0).all()  # the order of the file is kept
    about = data.manifest["splits"]["train"]
    assert about["short_lists"] == {"lists": 1, "rows": 40}
    assert about["cut_lists"] == {"lists": 3, "rows": 800 + 800 + 100}
    assert about["labels"] == {"0": split.rows - int(positives.sum()), "1": int(positives.sum())}


def test_samples_are_even() -> None:
    labels = np.array([1.0] * 20 + [0.0] * 80, np.float32)
    drawn = np.stack([sample(labels, 30, 3, seed, "q") for seed in range(3000)])
    assert (drawn.sum(axis=1) == 30).all()
    assert (drawn[:, :20].sum(axis=1) >= 3).all()
    # 3 of 20 positives are almost always drawn anyway, so every document has a chance of .3
    assert np.abs(drawn.mean(axis=0) - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 3000)


def test_samples_with_replacement_repeat_documents_and_enforce_positives(prepare: Callable[..., RankingData]) -> None:
    """ARF, B.2: lists of more than 200 documents are drawn with replacement, with at least 15 positives."""
    text = lists_of([200, 1000, 1000, 300], [5, 30, 4, 0])
    split = prepare(text, max_list=200, keep_positives=15, replacement=True)["train"]
    assert np.diff(split.offsets).tolist() == [200, 200, 200, 200]
    positives = np.add.reduceat(split.labels, split.offsets[:-1])
    assert positives[0] == 5  # shorter lists stay as they are
    assert positives[1] >= 15
    assert positives[2] == 15  # of 4 documents
    assert positives[3] == 0
    places = [split.features[low:high, 0] for low, high in zip(split.offsets, split.offsets[1:], strict=False)]
    assert [len(np.unique(place)) == len(place) for place in places] == [True, False, False, False]
    assert all((np.diff(place) >= 0).all() for place in places)
    for low, high, good in zip(split.offsets, split.offsets[1:], (5, 30, 4, 0), strict=False):
        assert ((split.features[low:high, 0] < good) == (split.labels[low:high] > 0)).all()


def test_samples_with_replacement_are_even() -> None:
    labels = np.array([1.0] * 20 + [0.0] * 80, np.float32)
    drawn = np.stack([sample_with_replacement(labels, 30, 0, seed, "q") for seed in range(3000)])
    assert (drawn.sum(axis=1) == 30).all()
    assert np.abs(drawn.mean(axis=0) - 0.3).max() < 5 * np.sqrt(0.3 / 3000)
    assert drawn.var(axis=0).mean() == pytest.approx(30 * 0.01 * 0.99, rel=0.05)  # binomial: draws are independent


def test_samples_depend_on_seed_and_query_alone(prepare: Callable[..., RankingData]) -> None:
    text = lists_of([50, 60, 70], [9, 9, 9])
    lists = text.split("0 qid:1 1:59\n")
    turned = lists[1] + lists[0] + "0 qid:1 1:59\n"
    one, other = prepare(text, max_list=20)["train"], prepare(turned, max_list=20)["train"]
    assert np.array_equal(one.features[40:], other.features[:20])
    assert np.array_equal(one.features[:40], other.features[20:])
    assert not np.array_equal(one.features, prepare(text, max_list=20, seed=1)["train"].features)


@pytest.mark.witness("hand", "prepare_letor")
def test_log1p_keeps_the_sign(prepare: Callable[..., RankingData]) -> None:
    data = prepare("1 qid:1 1:-3 2:0 3:1.7976931348623157e308\n", log1p=True)
    expected = [-np.log(4), 0, 1024 * np.log(2)]
    assert data["train"].features[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.witness("brute force", "prepare_letor")
def test_standardised_by_the_training_split_alone(prepare: Callable[..., RankingData]) -> None:
    texts = {
        "a": dense_text(seed=1).replace("3:", "3:1e-9 4:7 5:", 0),
        "b": dense_text(seed=2).replace("qid:", "qid:b"),
        "test": dense_text(seed=3).replace("qid:", "qid:t"),
    }
    raw = prepare(texts)
    done = prepare(texts, standardise=("a", "b"))
    train = np.concatenate([raw["a"].features, raw["b"].features]).astype(np.float64)
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    for name in texts:
        expected = (raw[name].features - mean) / deviation
        assert done[name].features == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert raw.scaling(["a", "b"])(raw[name].features) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    again = done.scaling(["a", "b"])  # what is standard already stays as it is
    assert again.mean == pytest.approx(0, abs=1e-6)
    assert again.deviation == pytest.approx(1, rel=1e-6)


def test_a_constant_feature_becomes_zero(prepare: Callable[..., RankingData]) -> None:
    text = "".join(f"0 qid:1 1:0.1 2:{i}\n" for i in range(1000))
    split = prepare(text, standardise=("train",))["train"]
    assert np.abs(split.features[:, 0]).max() < 1e-6
    assert split.features[:, 1].std() == pytest.approx(1, rel=1e-5)


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=2), min_size=1, max_size=30),
    st.integers(0, 30),
)
@pytest.mark.witness("brute force", "Moments")
def test_moments_of_parts_add_up(rows: list[list[float]], cut: int) -> None:
    values = np.array(rows, np.float32)
    whole = Moments.of(values[:cut]) + Moments.of(values[cut:])
    assert whole.rows == len(values)
    assert whole.mean == pytest.approx(values.astype(np.float64).mean(axis=0), rel=1e-9, abs=1e-6)
    squares = ((values - values.astype(np.float64).mean(axis=0)) ** 2).sum(axis=0)
    assert whole.squares == pytest.approx(squares, rel=1e-6, abs=1e-3)


@pytest.mark.witness("hand", "prepare_letor")
def test_missing_values(prepare: Callable[..., RankingData]) -> None:
    text = "1 qid:1 1:NULL 2:-3 4:?\n1 qid:1 1:5 2:nan 3:1e39\n0 qid:1 1:1 4:-inf\n"
    filled = prepare(text, missing_value=-1.0)["train"]
    assert filled.features.tolist() == [[-1, -3, 0, -1], [5, -1, -1, 0], [1, 0, 0, -1]]
    marked = prepare(text.replace("3:1e39", "3:7"), missing_value=0.0, missing_indicator=True)
    assert marked.manifest["features"]["indicators"] == [1, 2, 4]
    assert marked["train"].features[:, 4:].tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_list": 0}, "min_list: expected at least 1, found 0"),
        ({"min_list": 5, "max_list": 4}, "max_list: expected at least min_list, 5, found 4"),
        ({"missing_indicator": True}, "missing_indicator: expected given together with missing_value"),
        ({"missing_value": float("nan")}, "missing_value: expected a finite number, found nan"),
        ({"first_id": 2}, "first_id: expected 0, 1 or None, found 2"),
        ({"standardise": ("valid",)}, "standardise: expected one of the splits train, found 'valid'"),
        ({"min_list": 3}, "min_list: every list of split 'train' is shorter than 3; the longest has 2"),
        ({"features": 1}, "above the limit of 1"),
        ({"features": 2, "first_id": 0}, "features: expected 2 from id 0 on, but feature id 2 occurs"),
    ],
)
def test_wrong_recipes(prepare: Callable[..., RankingData], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare("1 qid:1 1:2 2:3\n0 qid:1 1:2 2:3\n", **options)


def test_many_labels_are_counted_in_ranges(prepare: Callable[..., RankingData]) -> None:
    data = prepare("".join(f"{i / 100} qid:1 1:1\n" for i in range(1001)))
    histogram = data.manifest["splits"]["train"]["labels"]
    assert sum(histogram.values()) == 1001
    assert next(iter(histogram)) == "0 to 0.5"
    assert set(histogram.values()) <= {49, 50, 51}


# --- the files ----------------------------------------------------------------------------------------------


def test_same_bytes_whatever_threads_and_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "data.txt", dense_text(lists=60, docids=True) + sparse_text().replace("qid:", "qid:s"))
    recipe = Recipe(min_list=5, max_list=20, log1p=True, standardise=("train",), seed=3)
    results: list[dict[str, bytes]] = []
    for threads, block_bytes in [(1, 2 << 20), (1, 2 << 20), (3, 1000), (2, 177)]:
        monkeypatch.setattr(source_module, "BLOCK_BYTES", block_bytes)
        out = tmp_path / f"out-{len(results)}"
        prepare_letor({"train": [path]}, out, recipe, threads=threads)
        results.append(bytes_of(out))
    assert all(result == results[0] for result in results)


def test_existing_data_is_kept_without_force(tmp_path: Path) -> None:
    sources = {"train": [write(tmp_path / "a.txt", "1 qid:1 1:2\n")]}
    out = tmp_path / "out"
    prepare_letor(sources, out, Recipe())
    with pytest.raises(ValueError, match="exists already; --force replaces it"):
        prepare_letor(sources, out, Recipe())
    write(tmp_path / "a.txt", "1 qid:1 1:3\n")
    assert prepare_letor(sources, out, Recipe(), force=True)["train"].features.tolist() == [[3]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "out"]


def test_what_is_not_ours_is_never_replaced(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", "1 qid:1 1:2\n")
    (tmp_path / "home").mkdir()
    write(tmp_path / "home" / "letter", "dear")
    for out in (tmp_path / "home", source):
        with pytest.raises(ValueError, match="exists and is not what this command writes"):
            prepare_letor({"train": [source]}, out, Recipe(), force=True)
    assert (tmp_path / "home" / "letter").read_text() == "dear"


@pytest.mark.parametrize("moment", ["_columns", "_write_split", "write_manifest", "sync"])
def test_a_crash_leaves_nothing_and_keeps_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    source = write(tmp_path / "a.txt", "1 qid:1 1:2\n")
    out = tmp_path / "out"
    prepare_letor({"train": [source]}, out, Recipe())
    before = bytes_of(out)

    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_disk if moment == "sync" else preparation, moment, crash)
    with pytest.raises(KeyboardInterrupt):
        prepare_letor({"train": [source]}, out, Recipe(seed=1), force=True)
    with pytest.raises(KeyboardInterrupt):
        prepare_letor({"train": [source]}, tmp_path / "new", Recipe())
    assert bytes_of(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "out"]


def test_loading_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not prepared ranking data"):
        RankingData.load(tmp_path)
    source = write(tmp_path / "a.txt", "1 qid:1 1:2\n")
    out = tmp_path / "out"
    prepare_letor({"train": [source]}, out, Recipe())
    RankingData.load(out, verify=True)
    labels = out / "train" / "labels.npy"
    content = labels.read_bytes()
    labels.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    data = RankingData.load(out)
    with pytest.raises(ValueError, match=r"labels\.npy has changed .*; prepare the data again"):
        data["train"]
    with pytest.raises(ValueError, match=r"labels\.npy has changed"):
        RankingData.load(out, verify=True)
    np.save(labels, np.zeros(2, np.float32))
    with pytest.raises(ValueError, match=r"labels\.npy has shape \(2,\), its manifest states \(1,\)"):
        RankingData.load(out, verify=False)["train"]
    manifest = out / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(ValueError, match="format version 99"):
        RankingData.load(out)


def test_arrays_are_mapped_and_of_the_promised_types(prepare: Callable[..., RankingData]) -> None:
    split = prepare(dense_text())["train"]
    arrays: list[NDArray[Any]] = [split.features, split.labels, split.offsets]
    assert [array.dtype for array in arrays] == [np.float32, np.float32, np.int64]
    assert all(isinstance(array, np.memmap) and not array.flags.writeable for array in arrays)
    assert len(split) == len(split.qids) == len(split.offsets) - 1
    assert split.rows == len(split.features)


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 100_000)
    monkeypatch.setattr(preparation, "CHUNK_BYTES", 100_000)
    text = dense_text(lists=40, features=40, docids=True)
    peaks = []
    for copies in (2, 10):
        parts = (text.replace("qid:", f"qid:{copy}-") for copy in range(copies))
        path = write(tmp_path / "data.txt", "".join(parts))
        tracemalloc.start()
        pool = pa.total_allocated_bytes()
        prepare_letor({"train": [path]}, tmp_path / f"out-{copies}", Recipe(max_list=30))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert pa.total_allocated_bytes() - pool < 100_000
    assert peaks[1] - peaks[0] < 30 * 8 * text.count("\n")  # labels and the numbers of lists, about 20 bytes per row
    assert peaks[1] < path.stat().st_size


# --- the command --------------------------------------------------------------------------------------------


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["letor", *map(str, arguments)])


def test_command_in_the_layout_of_mslr(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{name}.txt", dense_text(seed=seed).replace("qid:", f"qid:{name}"))
        for seed, name in enumerate(["train", "vali", "test"])
    ]
    result = run(*files, "--out", tmp_path / "out", "--standardise", "train", "--log1p", "--json")
    assert result.exit_code == 0
    manifest = json.loads(result.stdout)
    assert list(manifest["splits"]) == ["train", "vali", "test"]
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["recipe"]["standardise"] == ["train"]


def test_command_in_the_layout_of_letor(tmp_path: Path) -> None:
    parts = []
    for seed in range(5):
        text = dense_text(seed=seed).replace("qid:", f"qid:{seed}-")
        path = write(tmp_path / f"features_S{seed}.txt.gz", gzip.compress(text.encode()))
        parts.append(f"S{seed + 1}={path}")
    result = run(*parts, "--out", tmp_path / "out", "--min-list", 10, "--max-list", 20)
    assert result.exit_code == 0
    assert "lists below 10 documents" in result.stdout
    assert "above 20 documents" in result.stdout
    data = RankingData.load(tmp_path / "out")
    assert list(data) == ["S1", "S2", "S3", "S4", "S5"]
    train = np.concatenate([data[name].features for name in ("S1", "S2", "S3")])
    assert data.scaling(["S1", "S2", "S3"]).mean == pytest.approx(train.astype(np.float64).mean(axis=0))


def test_command_reports_skipped_lines_and_shared_queries(tmp_path: Path) -> None:
    train = write(tmp_path / "train.txt", "1 qid:1 1:2\n" + "broken\n" * 25)
    test = write(tmp_path / "test.txt", "1 qid:1 1:2\n")
    result = run(train, test, "--out", tmp_path / "out", "--skip-bad-lines")
    assert result.exit_code == 0
    assert "25 invalid lines" in result.stdout
    assert "train.txt:2: the label 'broken'" in result.stderr.replace("\n", "")
    assert "skipped 5 more lines" in result.stderr
    assert "train and test share 1 queries" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.txt"], "none.txt does not exist"),
        (["a.txt", "b/a.txt"], "same split name 'a'"),
        (["a.txt", "--standardise", "b"], "--standardise: found b, expected one of the splits a"),
        (["a.txt", "--missing-indicator"], "--missing-indicator: needs --missing-value"),
        (["a.txt", "--min-list", "5", "--max-list", "4"], "--max-list: 4 is below --min-list 5"),
        (["a.txt", "--groups", "x", "--groups", "y"], "--groups is given 2 times for 1 files"),
        (["b"], "b is a directory"),
    ],
)
def test_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").mkdir()
    for name in ("a.txt", "b/a.txt"):
        write(tmp_path / name, "1 qid:1 1:2\n")
    result = run(*arguments, "--out", "out")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert not (tmp_path / "out").exists()
