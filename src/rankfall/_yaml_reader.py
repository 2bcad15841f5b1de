"""YAML texts as plain values, within limits: no text takes long or much memory, and every error names its place.

Values are text, whole numbers, finite numbers, true, false, null, lists and mappings whose keys are text. Numbers are
decimal, as in YAML 1.2: ``3e-4`` is a number, while ``010``, ``1:30``, ``1_000`` and ``2024-01-13`` are text. Aliases
and merge keys are written out, so that two places never share a value.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

MAX_BYTES = 1_000_000
MAX_VALUES = 100_000
"""Largest number of values of a text, with aliases written out."""
MAX_DEPTH = 50
MAX_WHOLE = 2**63 - 1  # of 64 bits
MAX_KEY = 1_000

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)$")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)
_BOOLS = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}
_BREAKS = re.compile("[\x85\u2028\u2029]")
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


class YamlError(yaml.MarkedYAMLError):
    """An error of a text with its place."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(None, None, problem, mark)


def read_values(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        yaml.YAMLError: If the text is not YAML, exceeds a limit, or has another kind of value.
    """
    if len(text) > MAX_BYTES:
        raise YamlError(f"found a text of {len(text):,} characters, expected at most {MAX_BYTES:,}", None)
    return _unshared(yaml.load(text, _Loader))


def write_values(content: dict[str, Any]) -> str:
    """Return a mapping as YAML, in its own order. :func:`read_values` returns the same."""
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


class _Loader(yaml.SafeLoader):
    """Loader with limits, and with the types that configurations need."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = self._depth = 0
        self._deepest = 0  # of the value that is being composed, with aliases written out
        self._sizes: dict[yaml.Node, tuple[int, int]] = {}  # number of values and depth of each finished node

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node, and count its values as often as aliases repeat them."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            assert node is not None
            if node not in self._sizes:
                raise YamlError(f"found the alias *{event.anchor} inside its own value", event.start_mark)
            values, depth = self._sizes[node]
            self._count(values, self._depth + depth, event.start_mark)
            return node
        before, outer = self._values, self._deepest
        self._deepest = self._depth = self._depth + 1
        self._count(1, self._depth, event.start_mark)
        node = super().compose_node(parent, index)
        assert node is not None
        self._depth -= 1
        self._sizes[node] = (self._values - before, self._deepest - self._depth)
        self._deepest = max(outer, self._deepest)
        return node

    def _count(self, values: int, depth: int, mark: Any) -> None:
        self._values += values
        self._deepest = max(self._deepest, depth)
        if self._values > MAX_VALUES:
            raise YamlError(f"found more than {MAX_VALUES:,} values, aliases written out", mark)
        if depth > MAX_DEPTH:
            raise YamlError(f"found values nested deeper than {MAX_DEPTH}", mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping, whose keys are different texts."""
        if not isinstance(node, yaml.MappingNode):
            raise YamlError(f"found a {node.id}, expected keys and values", node.start_mark)
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == f"{_TAG}merge":
                continue
            if key.tag != f"{_TAG}str" or not isinstance(key, yaml.ScalarNode):
                found = repr(key.value) if isinstance(key, yaml.ScalarNode) else f"a {key.id}"
                raise YamlError(f"found {found:.60} as a key, expected text, in quotes if need be", key.start_mark)
            if len(key.value) > MAX_KEY:
                raise YamlError(
                    f"found a key of {len(key.value):,} characters, expected at most {MAX_KEY:,}", key.start_mark
                )
            if key.value in seen:
                raise YamlError(f"duplicate key {key.value!r:.60}", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def text(self, node: yaml.ScalarNode) -> str:
        """Construct a text that can be written to a file."""
        text: str = self.construct_scalar(node)
        if wrong := _UNWRITABLE.search(text):
            raise YamlError(f"found the character {wrong[0]!r}, which no text file can contain", node.start_mark)
        return text

    def whole(self, node: yaml.ScalarNode) -> int:
        """Construct a whole number."""
        text: str = self.construct_scalar(node)
        if not _INT.match(text):
            raise YamlError(f"found {text!r:.60}, expected a whole number", node.start_mark)
        if len(text) > 20 or not -MAX_WHOLE <= int(text) <= MAX_WHOLE:
            raise YamlError(
                f"found {text:.60}, expected a whole number from -(2**63 - 1) to 2**63 - 1, or quotes for text",
                node.start_mark,
            )
        return int(text)

    def number(self, node: yaml.ScalarNode) -> float:
        """Construct a finite number."""
        text: str = self.construct_scalar(node)
        if not (_FLOAT.match(text) or _INT.match(text)):
            raise YamlError(f"found {text!r:.60}, expected a number", node.start_mark)
        value = math.inf if "n" in text.lower() else float(text)
        if not math.isfinite(value):
            raise YamlError(f"found {text:.60}, expected a finite number", node.start_mark)
        return value

    def truth(self, node: yaml.ScalarNode) -> bool:
        """Construct true or false."""
        text: str = self.construct_scalar(node)
        if text.lower() not in _BOOLS:
            raise YamlError(f"found {text!r:.60}, expected true or false", node.start_mark)
        return _BOOLS[text.lower()]

    def refuse(self, node: yaml.Node) -> None:
        """Refuse values with another tag."""
        tag = node.tag.replace(_TAG, "!!")
        raise YamlError(f"found the tag {tag:.60}, expected plain text, numbers, lists or mappings", node.start_mark)


_Loader.yaml_constructors = {
    **{
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag in (f"{_TAG}null", f"{_TAG}seq", f"{_TAG}map")
    },
    f"{_TAG}str": _Loader.text,
    f"{_TAG}int": _Loader.whole,
    f"{_TAG}float": _Loader.number,
    f"{_TAG}bool": _Loader.truth,
    None: _Loader.refuse,
}
_Loader.yaml_implicit_resolvers = {
    first: [one for one in resolvers if one[0].removeprefix(_TAG) in ("null", "bool", "merge")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+0123456789."))


class _Dumper(yaml.SafeDumper):
    """Dumper that knows the numbers of both versions of YAML, and writes no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _write_text(dumper: _Dumper, text: str) -> yaml.Node:
    """Represent a text; between double quotes the line breaks of Unicode stay what they are."""
    return dumper.represent_scalar(f"{_TAG}str", text, style='"' if _BREAKS.search(text) else None)


_Dumper.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+0123456789."))
_Dumper.add_representer(str, _write_text)


def _unshared(value: Any) -> Any:
    """Return a copy in which no list and no mapping occurs at two places."""
    if isinstance(value, dict):
        return {key: _unshared(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_unshared(one) for one in value]
    return value
