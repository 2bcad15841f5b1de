"""examples/mq2007: ranks and features, held against a join in plain Python."""

from __future__ import annotations

import gzip
import math
import os
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from rankfall.data.impressions.log import ImpressionLog
from support.command_line import run
from support.examples import prepare_example, spec_of
from support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

Line = tuple[float, str, str, list[float | None]]
Part = dict[int, dict[str, tuple[float, list[float], list[float], list[float]]]]


def prepare_mq2007(source: Path, out: Path, *, missing_at_random: bool = False) -> ImpressionLog:
    options = {"directory": str(source), "missing_at_random": missing_at_random}
    return prepare_example(spec_of("mq2007"), out, options)


def source_files(source: Path) -> list[Path]:
    """The files of ranks and of features, one part after the other."""
    files = sorted(source.glob("*_S?.txt*"), key=lambda path: (path.name.partition("_")[2][:2], path.name))
    return [path for pair in zip(files[1::2], files[::2], strict=True) for path in pair]


# --- the witness ----------------------------------------------------------------------------------------------------


def read_lines(path: Path) -> list[Line]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = []
    for line in text.decode().splitlines():
        body, comment = line.split("#", 1)
        label, qid, *values = body.split()
        found = re.search(r"docid = (\S+)", comment)
        assert found is not None
        numbers = [None if value.endswith(":NULL") else float(value.split(":")[1]) for value in values]
        lines.append((float(label), qid[4:], found[1], numbers))
    return lines


def join_by_hand(ranks: list[Line], features: list[Line], left_out: set[tuple[str, str]] | None = None) -> Part:
    """For each query its documents with label, values of the ranks, which systems returned it, and features."""
    known = {(qid, docid): values for _, qid, docid, values in features}
    part: Part = {}
    for label, qid, docid, values in ranks:
        if (qid, docid) not in known or (qid, docid) in (left_out or set()):
            continue
        systems = [0.0 if rank is None else 1 - math.log(1 + rank) / math.log(1001) for rank in values]
        returned = [0.0 if rank is None else 1.0 for rank in values]
        numbers = [float(np.float32(value)) for value in known[qid, docid] if value is not None]
        part.setdefault(int(qid), {})[docid] = (label, systems, returned, numbers)
    return part


def check_part(log: ImpressionLog, day: str, expected: Part) -> None:
    ids = dict(zip(log.items()["item"].to_pylist(), log.items()["id"].to_pylist(), strict=True))
    impressions = log.days[day].table().to_pylist()
    assert sorted(impression["request"] for impression in impressions) == sorted(expected)
    for impression in impressions:
        documents = expected[impression["request"]]
        names = [ids[item].partition("/")[2] for item in impression["item"]]
        assert sorted(names) == sorted(documents)
        grades = sorted({label for label, *_ in documents.values()})
        for place, name in enumerate(names):
            label, systems, returned, features = documents[name]
            assert impression["relevance"][place] == label
            assert impression["grade"][place] == grades.index(label)
            assert impression["depth"][place] == 0
            np.testing.assert_allclose(impression["item.systems"][place], systems, atol=1e-6)
            assert impression["item.returned"][place] == returned
            assert impression["item.features"][place] == features


# --- a small twin of the files --------------------------------------------------------------------------------------


def write_lines(path: Path, lines: list[Line]) -> None:
    text = "".join(
        f"{label:g} qid:{qid} "
        + " ".join(f"{i + 1}:{'NULL' if value is None else format(value, 'g')}" for i, value in enumerate(values))
        + f" #docid = {docid} inc = 1 prob = 0.5\n"
        for label, qid, docid, values in lines
    )
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def make_lines(seed: int, queries: list[int]) -> tuple[list[Line], list[Line]]:
    draw = random.Random(seed)
    ranks: list[Line] = []
    features: list[Line] = []
    for qid in queries:
        for document in range(draw.randint(3, 9)):
            label, docid = float(draw.choice([0, 0, 0, 1, 2])), f"GX{document:03}-{draw.randint(0, 99):02}"
            ranks.append(
                (label, str(qid), docid, [draw.choice([None, draw.randint(1, 1000)]) for _ in range(21)]),
            )
            if document == 0 or draw.random() < 0.8:
                features.append((label, str(qid), docid, [round(draw.random(), 6) for _ in range(46)]))
    draw.shuffle(features)  # the files need not agree in their order
    features.sort(key=lambda line: int(line[1]))
    return ranks, features


@pytest.fixture
def twin(tmp_path: Path) -> Path:
    source = tmp_path / "mq2007"
    source.mkdir()
    for number, queries in enumerate([[10, 11, 15], [20, 22, 23, 29], [31]]):
        ranks, features = make_lines(number, queries)
        write_lines(source / f"systems21_S{number + 1}.txt.gz", ranks)
        write_lines(source / f"features46_S{number + 1}.txt", features)
    return source


def parts_by_hand(source: Path, left_out: set[tuple[str, str]] | None = None) -> dict[str, Part]:
    files = source_files(source)
    return {
        re.sub(r".*_(S\d)\..*", r"\1", ranks.name): join_by_hand(read_lines(ranks), read_lines(features), left_out)
        for ranks, features in zip(files[::2], files[1::2], strict=True)
    }


def test_documents_of_both_files_are_joined(twin: Path, tmp_path: Path) -> None:
    log = prepare_mq2007(twin, tmp_path / "log")
    log.verify()
    assert list(log.days) == ["S1", "S2", "S3"]
    joined = 0
    for day, part in parts_by_hand(twin).items():
        check_part(log, day, part)
        joined += sum(len(documents) for documents in part.values())
    assert log.manifest["about"]["counts"]["rows"] == joined


def test_rows_from_models_can_be_left_out(twin: Path, tmp_path: Path) -> None:
    listed = [(qid, docid) for _, qid, docid, _ in read_lines(twin / "features46_S2.txt")][::3]
    (twin / "rows_from_models.tsv").write_text("qid\tdocid\n" + "".join(f"{q}\t{d}\n" for q, d in listed))
    log = prepare_mq2007(twin, tmp_path / "log", missing_at_random=True)
    parts = parts_by_hand(twin, set(listed))
    for day, part in parts.items():
        check_part(log, day, part)
    joined = sum(len(documents) for part in parts_by_hand(twin).values() for documents in part.values())
    assert len(log.items()) == joined - len(listed)


def test_packed_and_plain_files_give_the_same_bytes(twin: Path, tmp_path: Path) -> None:
    prepare_mq2007(twin, tmp_path / "one")
    for path in twin.glob("systems21_*"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    prepare_mq2007(twin, tmp_path / "two")
    for file in [*(tmp_path / "one" / "days").rglob("*.arrow"), tmp_path / "one" / "items.arrow"]:
        assert file.read_bytes() == (tmp_path / "two" / file.relative_to(tmp_path / "one")).read_bytes()


def test_documents_that_only_the_features_know_are_left_out(twin: Path, tmp_path: Path) -> None:
    path = twin / "features46_S3.txt"
    write_lines(path, [*read_lines(path), (0.0, "31", "GX-unknown", [0.5] * 46)])
    log = prepare_mq2007(twin, tmp_path / "log")
    assert "31/GX-unknown" not in log.items()["id"].to_pylist()
    check_part(log, "S3", parts_by_hand(twin)["S3"])


def _edit(name: str, change: Callable[[list[str]], None]) -> Callable[[Path], None]:
    def apply(source: Path) -> None:
        path = source / name
        packed = path.suffix == ".gz"
        lines = (gzip.decompress(path.read_bytes()) if packed else path.read_bytes()).decode().splitlines()
        change(lines)
        text = "".join(line + "\n" for line in lines).encode()
        path.write_bytes(gzip.compress(text) if packed else text)

    return apply


def _replace(name: str, line: int, old: str, new: str) -> Callable[[Path], None]:
    def change(lines: list[str]) -> None:
        assert re.search(old, lines[line])
        lines[line] = re.sub(old, new, lines[line], count=1)

    return _edit(name, change)


def _remove(pattern: str) -> Callable[[Path], None]:
    def apply(source: Path) -> None:
        for path in source.glob(pattern):
            path.unlink()

    return apply


def _relabel(source: Path) -> None:
    path = source / "features46_S1.txt"
    (label, qid, docid, values), *lines = read_lines(path)
    write_lines(path, [((label + 1) % 3, qid, docid, values), *lines])


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no files": (_remove("*"), "found neither systems21_S1"),
    "no features": (_remove("features46_S2.txt"), r"found 0 of features46_S2\.txt and"),
    "both forms": (lambda source: (source / "systems21_S2.txt").touch(), r"found 2 of systems21_S2\.txt and"),
    "empty": (_edit("features46_S2.txt", list.clear), r"features46_S2\.txt: found no lines"),
    "cut off": (lambda source: _cut(source / "systems21_S1.txt.gz"), r"systems21_S1\.txt\.gz: the file is truncated"),
    "no number": (_replace("features46_S1.txt", 1, r" 7:\S+", " 7:seven"), r"features46_S1\.txt:2: .* not a number"),
    "missing": (_replace("features46_S1.txt", 1, r" 7:\S+", " 7:NULL"), r"features46_S1\.txt:2: .* not a number"),
    "short line": (_replace("features46_S1.txt", 2, r" 46:\S+", ""), r"features46_S1\.txt:3: .* 1 to 46"),
    "long line": (_replace("features46_S1.txt", 2, r" #", " 47:1 #"), r"features46_S1\.txt:3: .* 1 to 46"),
    "from 0": (_replace("systems21_S3.txt.gz", 0, r" 1:\S+ ", " 0:3 "), r"systems21_S3\.txt\.gz:1: .* 1 to 21"),
    "no document": (_replace("features46_S2.txt", 0, r"#.*", ""), r"features46_S2\.txt:1: expected '# ?docid"),
    "qid": (_replace("features46_S2.txt", 1, r"qid:\d+", "qid:ten"), r"features46_S2\.txt:2: expected qid:NUMBER"),
    "label": (_replace("systems21_S2.txt.gz", 0, r"^\d", "0.5"), r"systems21_S2\.txt\.gz:1: expected a label"),
    "twice": (_edit("systems21_S2.txt.gz", lambda lines: lines.insert(1, lines[0])), r"S2\.txt\.gz:2: .* second time"),
    "labels differ": (_relabel, "part S1: document .* another label among the features"),
    "rank": (_replace("systems21_S1.txt.gz", 0, r" 3:\S+", " 3:0"), "found a rank outside 1 to 1000"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_wrong_files_are_clear_errors(twin: Path, tmp_path: Path, name: str) -> None:
    spoil, message = BROKEN[name]
    spoil(twin)
    with pytest.raises(ValueError, match=message):
        prepare_mq2007(twin, tmp_path / "log")
    assert not list(tmp_path.glob("*log*"))
    assert not list(tmp_path.glob(".*"))


def test_a_query_in_two_partitions_is_an_error(twin: Path, tmp_path: Path) -> None:
    for kind in ("systems21_S{}.txt.gz", "features46_S{}.txt"):
        (twin / kind.format(4)).write_bytes((twin / kind.format(1)).read_bytes())
    with pytest.raises(ValueError, match="request 10 has rows with more than one value of 'part'"):
        prepare_mq2007(twin, tmp_path / "log")


def test_the_list_of_rows_from_models_must_be_there(twin: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rows_from_models\.tsv"):
        prepare_mq2007(twin, tmp_path / "log", missing_at_random=True)
    (twin / "rows_from_models.tsv").write_text("query\tdocid\n1\tx\n")
    with pytest.raises(ValueError, match="qid"):
        prepare_mq2007(twin, tmp_path / "log", missing_at_random=True)


def test_the_command_prepares_the_example(twin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the first lines of ``spec.yaml``: in the root of the repository, with the files in ``$RANKFALL_DATA``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setenv("RANKFALL_DATA", str(twin.parent))
    assert run("prepare", "rows", "--spec", "examples/mq2007/spec.yaml", "--out", "log") == 0
    log = ImpressionLog.load(tmp_path / "log")
    assert list(log.days) == ["S1", "S2", "S3"]


# --- the real files -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Path:
    root = os.environ.get("RANKFALL_DATA")
    if not root or not (Path(root) / "mq2007").is_dir():
        pytest.skip("RANKFALL_DATA names no directory with mq2007 in it")
    return Path(root) / "mq2007"


@pytest.fixture(scope="module")
def real_log(real: Path, tmp_path_factory: pytest.TempPathFactory) -> ImpressionLog:
    return prepare_mq2007(real, tmp_path_factory.mktemp("mq2007") / "log")


@pytest.mark.slow
def test_the_real_files_are_joined(real: Path, real_log: ImpressionLog) -> None:
    assert {day: len(of) for day, of in real_log.days.items()} == {
        "S1": 339,
        "S2": 339,
        "S3": 339,
        "S4": 339,
        "S5": 336,
    }
    assert len(real_log.items()) == 61_644
    ranks, features = source_files(real)[-2:]
    check_part(real_log, "S5", join_by_hand(read_lines(ranks), read_lines(features)))


def test_the_real_rows_from_models_can_be_left_out(real: Path, tmp_path: Path) -> None:
    log = prepare_mq2007(real, tmp_path / "log", missing_at_random=True)
    assert len(log.items()) == 61_644 - 2_509


def _ndcg(scores: Any, labels: Any) -> float:
    gains, discounts = 2.0**labels - 1, 1 / np.log2(np.arange(2, 12))
    reached, best = gains[np.argsort(-scores, kind="stable")][:10], np.sort(gains)[::-1][:10]
    return float(reached @ discounts[: len(reached)] / (best @ discounts[: len(best)]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "least"),
    [(["item.features"], 0.505), (["item.systems"], 0.58), (["item.systems", "item.returned"], 0.575)],
)
def test_ridge_regression_reaches_what_it_reached_elsewhere(
    real_log: ImpressionLog, features: list[str], least: float
) -> None:
    """Its mean NDCG@10 over the five folds, on standardised features, with the training parts of each fold."""
    parts = []
    for day in real_log.days.values():
        table = day.table()
        columns = [np.asarray(table[name].combine_chunks().flatten().flatten()) for name in features]
        labels = np.asarray(table["relevance"].combine_chunks().flatten())
        lengths = [len(items) for items in table["item"].to_pylist()]
        parts.append((np.hstack([column.reshape(len(labels), -1) for column in columns]), labels, np.cumsum(lengths)))
    reached = []
    for fold in range(5):
        train = [parts[(fold + i) % 5] for i in range(3)]
        x, y = np.vstack([part[0] for part in train]), np.hstack([part[1] for part in train])
        mean, deviation = x.mean(0), x.std(0) + 1e-9
        model = Ridge(alpha=100.0).fit((x - mean) / deviation, y)
        x, y, ends = parts[(fold + 4) % 5]
        scores = np.split(model.predict((x - mean) / deviation), ends[:-1])
        queries = [(s, t) for s, t in zip(scores, np.split(y, ends[:-1]), strict=True) if t.max() > 0]
        reached.append(float(np.mean([_ndcg(s, t) for s, t in queries])))
    assert np.mean(reached) > least
