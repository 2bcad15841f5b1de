"""Built-in components, found without importing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankfall.register import Kind


def place(kind: Kind, name: str) -> str | None:
    """Return the module and the name of a built-in component, or None if there is none of this name."""
    from rankfall import registry

    attribute = registry._ATTRIBUTES.get(kind, {}).get(name)
    return attribute and f"{registry._PACKAGES[kind]}.{attribute}"
