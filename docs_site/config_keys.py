"""The reference of the keys of configurations, from the models that validate them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from docs_site.doc_strings import to_markdown
from docs_site.markdown import code, page, table
from docs_site.tables import anchor

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTRODUCTION = """
# Keys of configurations

Every key of every kind of file, with its type and default. `rankfall config show FILE` prints a file with all defaults
and reports errors, `rankfall config schema` prints JSON schemas for editors. [Configuration](configuration.md) explains
the keys by examples. *Needed* keys have no default. The options of models, losses, objectives and operators are on
[their own pages](../methods/index.md).
"""


def keys_page() -> str:
    """Return the Markdown of the keys of all kinds of files."""
    return page(_INTRODUCTION, *(part for title, model in models().items() for part in _file(title, model)))


def models() -> dict[str, Any]:
    """Return the models of the files by the titles of their sections."""
    from rankfall.data.impressions.spec import Spec
    from rankfall.studies.comparison_plan import ComparisonConfig
    from rankfall.studies.search_space import Range, _SearchSections
    from rankfall.studies.stream.stream_config import StreamConfig
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.config.ranker_config import RankerConfig

    return {
        "Training of a ranker": RankerConfig,
        "Training of a cascade": CascadeConfig,
        "Comparison": ComparisonConfig,
        "Search": _SearchSections,
        "Range of a search": Range,
        "Stream": StreamConfig,
        "Spec of a log": Spec,
    }


def _file(title: str, model: Any) -> Iterator[str]:
    schema = model.model_json_schema()
    file = File(anchor(title), schema.get("$defs", {}), _places(schema))
    yield f"## {title}"
    yield to_markdown(schema.get("description", ""))
    yield _keys(schema, file)
    for name, heading in file.headings.items():
        yield f"### {heading} {{ #{file.anchor(name)} }}"
        yield to_markdown(file.sections[name].get("description", ""))
        yield _keys(file.sections[name], file)


@dataclass(frozen=True)
class File:
    """A kind of file.

    Attributes:
        name: Prefix of the anchors of its sections.
        sections: Schemas by the names of their models.
        places: Dotted key under which each section is first used, in that order.
    """

    name: str
    sections: dict[str, Any]
    places: dict[str, str]

    @property
    def headings(self) -> dict[str, str]:
        """The headings of all sections with keys. Sections under the same key add the names of their models."""
        counts = Counter(self.places.values())
        return {
            name: place if counts[place] == 1 else f"{place}: {name.removesuffix('Config')}"
            for name, place in self.places.items()
            if "properties" in self.sections[name]
        }

    def anchor(self, name: str) -> str:
        """Return the anchor of a section."""
        return f"{self.name}-{anchor(name)}"


def _places(schema: dict[str, Any]) -> dict[str, str]:
    """Return the dotted key under which each section is first used, in that order."""
    found: dict[str, str] = {}
    sections = schema.get("$defs", {})

    def visit(part: Any, place: str) -> None:
        if isinstance(part, list):
            for one in part:
                visit(one, place)
        if not isinstance(part, dict):
            return
        name = str(part.get("$ref", "")).rpartition("/")[2]
        if name and name not in found:
            found[name] = place
            visit(sections[name], place)
        for key, value in part.get("properties", {}).items():
            visit(value, f"{place}.{key}" if place else key)
        for key in ("anyOf", "oneOf", "items", "additionalProperties"):
            visit(part.get(key), place)

    visit(schema, "")
    return found


def _keys(schema: dict[str, Any], file: File) -> str:
    needed = schema.get("required", [])
    rows = [
        [code(key), type_text(value, file), _default(value, key in needed), _description(value, file)]
        for key, value in schema.get("properties", {}).items()
    ]
    return table(["key", "type", "default", "meaning"], rows)


def _description(value: dict[str, Any], file: File) -> str:
    """Return the description of a key, or the first paragraph of that of its section."""
    if "description" in value:
        return to_markdown(value["description"])
    if "const" in value:
        return "Selects this section."
    name = value.get("$ref", "").rpartition("/")[2]
    return to_markdown(file.sections[name].get("description", "").partition("\n\n")[0]) if name else ""


def _default(value: dict[str, Any], needed: bool) -> str:
    if needed:
        return "*needed*"
    default = value.get("default")
    if isinstance(default, dict) and default:
        return "its defaults"
    return code(json.dumps(default, ensure_ascii=False))


def type_text(value: dict[str, Any], file: File) -> str:
    """Return the type of a key in words.

    >>> file = File("training", {}, {})
    >>> type_text({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "all"}, {"type": "null"}]}, file)
    'whole number of at least 1, `all` or `null`'
    >>> type_text({"type": "array", "items": {"enum": ["a", "b"]}}, file)
    'list of `a` or `b`'
    """
    for union in ("anyOf", "oneOf"):
        if union in value:
            return _either([type_text(one, file) for one in value[union]])
    match value:
        case {"$ref": str() as reference}:
            name = reference.rpartition("/")[2]
            if name in file.headings:
                return f"[section](#{file.anchor(name)})"
            return type_text(file.sections[name], file)
        case {"const": constant}:
            return code(json.dumps(constant).strip('"'))
        case {"enum": list() as choices}:
            return _either([code(str(choice)) for choice in choices])
        case {"type": "array"}:
            return f"list of {type_text(value['items'], file)}" if value.get("items") else "list"
        case {"type": "object"}:
            content = value.get("additionalProperties")
            return f"mapping to {type_text(content, file)}" if isinstance(content, dict) and content else "mapping"
        case {"type": str() as kind}:
            return _WORDS[kind] + _range(value)
        case _:
            return "any value"


_WORDS = {
    "null": "`null`",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "string": "text",
}


def _either(choices: list[str]) -> str:
    *first, last = dict.fromkeys(choices)
    return f"{', '.join(first)} or {last}" if first else last


_LARGE = 2**31 - 3  # bounds beyond this are those of the number's representation


def _range(value: dict[str, Any]) -> str:
    bounds = [
        (value.get("minimum"), "of at least"),
        (value.get("exclusiveMinimum"), "above"),
        (value.get("maximum"), "of at most"),
        (value.get("exclusiveMaximum"), "below"),
    ]
    parts = [f"{words} {bound:g}" for bound, words in bounds if bound is not None and bound < _LARGE]
    return f" {' and '.join(parts)}" if parts else ""
