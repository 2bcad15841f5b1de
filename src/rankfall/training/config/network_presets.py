"""Networks of the papers' industrial experiments, by name: ``model: {kind: two_tower, preset: lcron_industrial}``.

A preset is replaced by its options when a configuration is read. Options that the configuration gives take precedence.
The momentum .999 of TensorFlow's batch norm, which the papers print, is .001 in torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall._suggestions import did_you_mean
from rankfall._yaml_config import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PRELU = {"activation": "prelu", "init": "he", "batch_norm": True, "norm_momentum": 0.001}
_SELU = {"activation": "selu", "residual": True, "batch_norm": True, "norm_momentum": 0.001}

_STAGES: dict[str, dict[str, dict[str, Any]]] = {
    "arf_industrial": {"mlp": {"hidden": [1024, 256, 256, 256], **_SELU}},  # ARF, appendix B.3
    "lcron_industrial": {  # LCRON, appendix B
        "two_tower": {"dim": 64, "hidden": [1024, 256, 256, 64], **_PRELU},
        "mlp": {"dim": 64, "hidden": [1024, 512, 512], **_PRELU},
    },
    "dftopk_industrial": {  # DFTopK, appendix E
        "two_tower": {"dim": 96, "hidden": [1024, 768, 768, 96], **_PRELU},
        "mlp": {"dim": 96, "hidden": [1024, 768, 768], **_PRELU},
    },
}

PRESETS = tuple(_STAGES)
"""Names of the presets."""


def with_preset(model: Mapping[str, Any], *, embedded: bool) -> dict[str, Any]:
    """Return the options of a model with the name of a preset replaced by the options of the preset.

    Args:
        model: Kind of the model, its options, and ``preset``, if there is one.
        embedded: Whether the model embeds features. The model of a ranker takes numbers, so `dim` does not apply.

    Raises:
        OptionError: If there is no such preset, or it has no model of this kind.

    Examples:
        >>> with_preset({"kind": "mlp", "preset": "arf_industrial", "hidden": [8, 8]}, embedded=False)["hidden"]
        [8, 8]
    """
    options = dict(model)
    name = options.pop("preset", None)
    if name is None:
        return options
    if name not in _STAGES:
        raise OptionError(f"found {name!r}{did_you_mean(name, PRESETS)}; allowed are {', '.join(PRESETS)}", "preset")
    kind = options.get("kind", "mlp")
    if kind not in _STAGES[name]:
        raise OptionError(f"found {name!r}, which has {' and '.join(_STAGES[name])}, not {kind!r}", "preset")
    preset = {key: value for key, value in _STAGES[name][kind].items() if embedded or key != "dim"}
    return preset | options
