"""Bundles that answered recorded requests."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

from rankfall._manifest import MANIFEST
from rankfall.serving.bundle import Bundle
from rankfall.serving.bundle_files import is_bundle, read_manifest
from rankfall.serving.service.bundle_slots import model_name

_MOST_LOADED = 2
_DEEPEST = 4  # directories below the one that is searched


class BundleFinder:
    """Loads bundles by the names of their models.

    Args:
        directory: Where bundles are searched that are not at their place any more.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._loaded: OrderedDict[str, Bundle] = OrderedDict()
        self._absent: set[str] = set()

    def find(self, model: str, path: str) -> Bundle:
        """Return the bundle of a model.

        Args:
            model: The name of the model.
            path: Where the bundle was when it answered.

        Raises:
            ValueError: If it is not there any more.
        """
        if model not in self._loaded:
            self._loaded[model] = Bundle.load(self._place(model, Path(path)))
            if len(self._loaded) > _MOST_LOADED:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(model)
        return self._loaded[model]

    def if_present(self, model: str, path: str) -> Bundle | None:
        """Return the bundle of a model, None if it is not there any more."""
        if model in self._absent:
            return None
        try:
            return self.find(model, path)
        except ValueError:
            self._absent.add(model)
            return None

    def _place(self, model: str, path: Path) -> Path:
        if _is_model(path, model):
            return path
        for place, folders, files in os.walk(self._directory) if self._directory is not None else ():
            depth = len(Path(place).relative_to(self._directory or place).parts)
            if depth >= _DEEPEST:
                folders.clear()
            if MANIFEST in files and _is_model(Path(place), model):
                return Path(place)
        searched = "" if self._directory is None else f", nor in {self._directory}"
        raise ValueError(
            f"parity: the bundle of model {model} is not at {path} any more{searched}; keep bundles until their days "
            "are joined, name their directory with --bundles, or skip the check with --parity 0"
        )


def _is_model(path: Path, model: str) -> bool:
    return is_bundle(path) and model_name(read_manifest(path)) == model
