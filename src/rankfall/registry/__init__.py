"""Operators, losses, objectives, models, metrics and data sources by the names that configurations use.

The registry maps a kind and a name to a function or class, and reads the options of a component from its signature.
It builds nothing. A name is, in this order,

1. that of a built-in component (:mod:`rankfall.registry.builtin`),
2. that of a component that an imported module has registered (:mod:`rankfall.register`),
3. that of an entry point of the group ``rankfall``, such as ``"loss.focal" = "my_package.losses:focal"``, or
4. a reference: ``"module.path:attribute"`` or ``"./file.py:attribute"`` (:mod:`rankfall.registry.references`).

Names are known without importing torch. Options are known once the component is imported.

>>> names("model")
('din', 'mlp', 'two_tower')
>>> list(options("operator", "sparse_topk"))
['tau', 'p', 'variant']
>>> check_options("loss", "ranknet_loss", ["sigm"])
Traceback (most recent call last):
rankfall.RankfallError: ranknet_loss has no option 'sigm', did you mean 'sigma'; its options are sigma
"""

from rankfall.register import KINDS, Kind
from rankfall.registry.builtin import SORTS
from rankfall.registry.components import (
    REQUIRED,
    Option,
    Part,
    builtins,
    check_options,
    config_value,
    defaults,
    explicit_operator,
    get,
    is_builtin,
    is_own,
    names,
    options,
    python_name,
)

__all__ = [
    "KINDS",
    "REQUIRED",
    "SORTS",
    "Kind",
    "Option",
    "Part",
    "builtins",
    "check_options",
    "config_value",
    "defaults",
    "explicit_operator",
    "get",
    "is_builtin",
    "is_own",
    "names",
    "options",
    "python_name",
]
