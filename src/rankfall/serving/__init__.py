"""Trained cascades that answer requests.

``rankfall export`` writes a bundle: graphs, an index, item features and vocabularies. :class:`Bundle` answers with it::

    bundle = rf.serving.Bundle.load("bundle")
    bundle.rank({"user": {"user_id": 17}}, k=10).ids

Serving needs numpy, pyarrow, onnxruntime and faiss (``pip install 'rankfall[serve]'``); torch is never imported.
"""

from __future__ import annotations

import os

# Releases of onnxruntime from 1.29 on tell their maker about every model, unless this is set before they are imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
try:
    import faiss  # noqa: F401
    import onnxruntime  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"rankfall.serving needs {error.name}, which is not installed: pip install 'rankfall[serve]'", name=error.name
    ) from None

from rankfall.serving.bundle import Bundle
from rankfall.serving.request_encoder import Batch, RequestError
from rankfall.serving.results import Answers, Ranking, StageTrace

__all__ = ["Answers", "Batch", "Bundle", "Ranking", "RequestError", "StageTrace"]
