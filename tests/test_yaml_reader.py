"""YAML texts: which values they have, and that no text takes long or much memory."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall._config import ConfigError, parse_yaml, read_source, read_yaml, shown, to_yaml
from rankfall._errors import did_you_mean
from rankfall._yaml_reader import MAX_BYTES, MAX_DEPTH, MAX_VALUES
from rankfall.studies.comparison_plan import load_comparison
from rankfall.training.config.load_config import apply_overrides, load_config
from support.command_line import run

if TYPE_CHECKING:
    from pathlib import Path


def levels(count: int, first: str, next_one: str) -> str:
    """Return anchors a0, a1, ..., each with aliases of the one before."""
    later = (f"a{i}: &a{i} {next_one.replace('*', f'*a{i - 1}')}\n" for i in range(1, count))
    return f"a0: &a0 {first}\n" + "".join(later)


BOMB = levels(10, "[x, x, x, x, x, x, x, x, x, x]", "[*,*,*,*,*,*,*,*,*,*]")
WRONG = {
    levels(
        10, "[x, x, x, x, x, x, x, x, x, x]", "[*, *, *, *, *, *, *, *, *, *]"
    ): "line 5, .* more than 100,000 values",
    levels(40, "{k: v}", "{<<: [*, *]}"): "more than 100,000 values",
    levels(60, "[x]", "[*]"): "line 49, column 12: found values nested deeper than 50",
    "a: &a [*a]": r"line 1, column 8: found the alias \*a inside its own value",
    "a: &a {b: *a}": r"found the alias \*a inside its own value",
    "a: *b": "undefined alias",
    "[" * 100_000: "line 1, column 51: found values nested deeper than 50",
    "- " * 100_000: "nested deeper than 50",
    "a: " + "x" * MAX_BYTES: "found a text of 1,000,003 characters, expected at most 1,000,000",
    "k" * 1001 + ": 1": "found a key of 1,001 characters, expected at most 1,000",
    "a: 1\nb: 2\na: 3": "line 3, column 1: duplicate key 'a'",
    "1: x": "line 1, column 1: found '1' as a key, expected text",
    "on: x": "found 'on' as a key, expected text",
    "~: x": "found '~' as a key, expected text",
    "? [a, b]\n: x": "found a sequence as a key, expected text",
    "a: !!python/object/apply:os.system [ls]": "found the tag !!python/object/apply:os.system, expected plain",
    "a: !!binary eA==": "line 1, column 4: found the tag !!binary",
    "a: !!set {x}": "found the tag !!set",
    "a: !!omap [x: 1]": "found the tag !!omap",
    "a: !!timestamp 2024-01-13": "found the tag !!timestamp",
    "a: !loss x": "found the tag !loss",
    "a: !!int ten": "found 'ten', expected a whole number",
    "a: !!int ''": "found '', expected a whole number",
    "a: !!float x": "found 'x', expected a number",
    "a: !!bool 2": "found '2', expected true or false",
    "a: !!map [x]": "found a sequence, expected keys and values",
    "a: !!str [x]": "expected a scalar node, but found sequence",
    "a: b\n--- \nc: d": "line 2, column 1: but found another document",
    'a: "x\\0y"': r"line 1, column 4: found the character '\\x00', which no text file can contain",
    'a: "\\ud800"': "found the character '.ud800'",
    "a: b\nc: \0": r"line 2, column 4: found the character U\+0000",
    "a:\n\tb: 1": "line 2, column 1: found character '.t' that cannot start any token",
    f"a: {10**30}": f"line 1, column 4: found {10**30}, expected a whole number from",
    f"a: {2**63}": "expected a whole number",
    "a: " + "9" * 5000: "expected a whole number",
    "a: 1e999": "line 1, column 4: found 1e999, expected a finite number",
    "a: .inf": "found .inf, expected a finite number",
    "a: -.INF": "found -.INF, expected a finite number",
    "a: .nan": "found .nan, expected a finite number",
}


@pytest.mark.parametrize("text", WRONG, ids=[text[:30] for text in WRONG])
def test_wrong_texts_are_refused_with_their_place(text: str) -> None:
    with pytest.raises(ConfigError, match=WRONG[text]) as found:
        parse_yaml(text, "file")
    assert re.match(r"file(, line \d+, column \d+)?: ", str(found.value))
    assert len(str(found.value)) < 300


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1.5", 1.5),
        ("-.5E+2", -50.0),
        (f"{2**63 - 1}", 2**63 - 1),
        ("010", "010"),  # an octal number in YAML 1.1, so that a list of days 01, ..., 31 would not be one of texts
        ("08", "08"),
        ("1:30:00", "1:30:00"),  # a number of base 60 in YAML 1.1
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("2024-01-13", "2024-01-13"),
        ("=", "="),
        ("..", ".."),
        ("yes", True),
        ("!!str 5", "5"),
        ("!!float 5", 5.0),
        ("\ufeffa: 1", {"a": 1}),
        (
            "{a: &a {x: 1}, b: {<<: *a, y: 2}, c: {<<: [*a], x: 3}}",
            {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": {"x": 3}},
        ),
    ],
)
def test_values_of_texts(text: str, value: object) -> None:
    found = parse_yaml(text, "file")
    assert found == value
    assert type(found) is type(value)


def test_aliases_do_not_share_values() -> None:
    content = parse_yaml("stages: [{model: &m {dim: 8}}, {model: *m}]", "file")
    changed = apply_overrides(content, ["stages.0.model.dim=4"])
    assert [stage["model"]["dim"] for stage in changed["stages"]] == [4, 8]


plain = (
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["1e3", "010", "1:30", "yes", "~", "<<", "=", "0x1", "2024-01-13", ".5", "1_0"]
)
values = st.recursive(
    plain | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(words, values, max_size=4))
def test_what_is_written_is_read_again(content: dict[str, Any]) -> None:
    assert parse_yaml(to_yaml(content), "file") == content


@given(st.text(max_size=60) | st.text("[]{}&*!:-?<> ab01.\"'\n\t#|%@", max_size=60))
def test_every_text_is_read_or_refused_with_one_type_of_error(text: str) -> None:
    with suppress(ConfigError):  # and no other error
        parse_yaml(text, "file")


def test_files_that_are_too_large_are_not_read_to_their_end(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="/dev/zero is not a file, expected a YAML file"):
        read_source("/dev/zero")
    (tmp_path / "large.yaml").write_text("# " + "a" * 1_000_000)
    with pytest.raises(
        ConfigError, match=r"large\.yaml: found a larger file, expected a YAML file of at most 1,000,000 bytes"
    ):
        read_source(tmp_path / "large.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: caf\xe9")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_yaml(tmp_path / "latin.yaml")


def test_mappings_of_programs_have_the_same_limits() -> None:
    itself: dict[str, Any] = {}
    itself["a"] = itself
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    for content in (itself, deep, {"a": [0] * MAX_VALUES}):
        with pytest.raises(ConfigError, match=f"more than 100,000 values, or values nested deeper than {MAX_DEPTH}"):
            read_source(content)


def test_overrides_have_limits() -> None:
    with pytest.raises(ConfigError, match="found a key of 1001 parts, expected at most 50"):
        apply_overrides({}, ["a." * 1000 + "b=1"])
    with pytest.raises(
        ConfigError, match=r"^override 'a=\[\[.*\.\.\., line 1, column 51: found values nested"
    ) as found:
        apply_overrides({}, ["a=" + "[" * 100_000])
    assert len(str(found.value)) < 200


def test_messages_are_short() -> None:
    assert shown(10**5000) == "a number of thousands of digits"
    assert did_you_mean("x" * 10**6, ["x" * 10**6]) == ""
    with pytest.raises(ConfigError) as found:
        load_config(
            {"data": {"path": "p", "train": "a", "valid": "b"}, "loss": {"name": "l" * 100_000}, "k" * 10**5: 1}
        )
    assert len(str(found.value)) < 3000


RANKER = {"data": {"path": "lists", "train": "S1", "valid": "S2"}, "loss": {"name": "softmax_loss"}}
CASCADE = {
    "data": {"path": "log", "train": "1", "valid": "2"},
    "stages": [{"name": "first", "quota": 5, "model": {"kind": "two_tower"}}],
    "objective": {"name": "bce"},
}


@pytest.mark.parametrize(
    ("base", "key"),
    [
        *((RANKER, key) for key in ("epochs", "batch", "patience", "threads", "keep", "max_list", "seed")),
        *((CASCADE, key) for key in ("epochs", "batch", "patience", "validate_every", "window")),
    ],
)
def test_absurd_counts_are_refused_with_the_range(base: dict[str, Any], key: str) -> None:
    for number in (2**63, 10**30, 10**5000):
        with pytest.raises(ConfigError, match=rf"config: training.{key}: found .*, expected less than"):
            load_config(base | {"training": {key: number}})


@pytest.mark.parametrize(
    "override", ["relevant", "stages.0.quota", "data.negatives", "data.length", "stages.0.min_depth"]
)
def test_absurd_sizes_of_cascades_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=f"{override.rpartition('.')[2]}: found 1000000000000, expected"):
        load_config(CASCADE, [f"{override}=1000000000000"])
    with pytest.raises(ConfigError, match=f"override '{override}=1.*: found {10**30}, expected a whole number from"):
        load_config(CASCADE, [f"{override}={10**30}"])


def test_grids_have_a_limit() -> None:
    tune = {f"optimizer.{key}": [0.1 * i for i in range(1, 101)] for key in ("lr", "weight_decay", "clip")}
    with pytest.raises(ConfigError, match=r"methods.a.tune: found a grid of 1,000,000 points, expected at most 10,000"):
        load_comparison(RANKER | {"methods": {"a": {}}, "tune": tune})


def test_a_bomb_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(BOMB)
    for words in (
        ("train", config, "--out", tmp_path / "out"),
        ("compare", config, "--out", tmp_path / "out"),
        ("stream", config, "--out", tmp_path / "out"),
        ("tune", config, "--out", tmp_path / "out"),
        ("config", "show", config),
        ("prepare", "rows", config, "--spec", config, "--out", tmp_path / "out"),
    ):
        assert run(*words) == 1
        assert f"error: {config}, line 5, column 38: found more than 100,000 values" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
