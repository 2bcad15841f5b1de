"""The reference of the keys of configurations, from the models that validate them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from docs_site.doc_strings import to_markdown
from docs_site.markdown import code, page, table

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
    return page(_INTRODUCTION, *(part for title, model in _models().items() for part in _file(title, model)))


def _models() -> dict[str, Any]:
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
        "Description of a log": Spec,
    }


def _file(title: str, model: Any) -> Iterator[str]:
    schema = model.model_json_schema()
    sections = schema.get("$defs", {})
    yield f"## {title}"
    yield _text(schema.get("description", ""))
    yield _keys(schema, sections)
    for name in _reachable(schema, sections):
        if "properties" in sections[name]:
            yield f"### {title}: {name.removesuffix('Config')}"
            yield _text(sections[name].get("description", ""))
            yield _keys(sections[name], sections)


def _reachable(schema: dict[str, Any], sections: dict[str, Any]) -> list[str]:
    """Return the names of all sections in the order in which they are first used."""
    found: list[str] = []

    def visit(part: Any) -> None:
        if isinstance(part, dict):
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.append(name)
                visit(sections[name])
            for key, value in part.items():
                if key != "$defs":
                    visit(value)
        elif isinstance(part, list):
            for one in part:
                visit(one)

    visit(schema)
    return found


def _keys(schema: dict[str, Any], sections: dict[str, Any]) -> str:
    needed = schema.get("required", [])
    rows = [
        [code(key), type_text(value, sections), _default(value, key in needed), _description(value, sections)]
        for key, value in schema.get("properties", {}).items()
    ]
    return table(["key", "type", "default", "meaning"], rows)


def _description(value: dict[str, Any], sections: dict[str, Any]) -> str:
    """Return the description of a key, or the first paragraph of that of its section."""
    if "description" in value:
        return _text(value["description"])
    name = value.get("$ref", "").rpartition("/")[2]
    return _text(sections[name].get("description", "").partition("\n\n")[0]) if name else ""


def _default(value: dict[str, Any], needed: bool) -> str:
    if needed:
        return "*needed*"
    default = value.get("default")
    if isinstance(default, dict) and default:
        return "its defaults"
    return code(json.dumps(default, ensure_ascii=False))


def type_text(value: dict[str, Any], sections: dict[str, Any]) -> str:
    """Return the type of a key in words.

    >>> type_text({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "all"}, {"type": "null"}]}, {})
    'whole number of at least 1, `all` or `null`'
    >>> type_text({"type": "array", "items": {"enum": ["a", "b"]}}, {})
    'list of `a` or `b`'
    """
    for union in ("anyOf", "oneOf"):
        if union in value:
            return _either([type_text(one, sections) for one in value[union]])
    match value:
        case {"$ref": str() as reference}:
            name = reference.rpartition("/")[2]
            section = sections[name]
            if "properties" in section:
                return f"section {name.removesuffix('Config')}"
            return type_text(section, sections)
        case {"const": constant}:
            return code(json.dumps(constant).strip('"'))
        case {"enum": list() as choices}:
            return _either([code(str(choice)) for choice in choices])
        case {"type": "array"}:
            return f"list of {type_text(value['items'], sections)}" if value.get("items") else "list"
        case {"type": "object"}:
            content = value.get("additionalProperties")
            return f"mapping to {type_text(content, sections)}" if isinstance(content, dict) and content else "mapping"
        case {"type": "null"}:
            return "`null`"
        case {"type": "integer"}:
            return "whole number" + _range(value)
        case {"type": "number"}:
            return "number" + _range(value)
        case {"type": "boolean"}:
            return "`true` or `false`"
        case {"type": "string"}:
            return "text"
        case _:
            return "any value"


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


def _text(text: str) -> str:
    return to_markdown(text)
