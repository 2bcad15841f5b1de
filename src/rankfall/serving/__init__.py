"""Serving of trained cascades.

``rankfall export`` writes a bundle: ONNX graphs, an index, item features and vocabularies. :class:`Bundle` answers
requests with it::

    bundle = rf.serving.Bundle.load("bundle")
    bundle.rank({"user": {"user_id": 17}}, k=10).ids

Serving needs numpy, pyarrow, onnxruntime and faiss (``pip install 'rankfall[serve]'``); torch is not imported.
"""

from __future__ import annotations

import os

# onnxruntime 1.29 and later send telemetry about every model unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
try:
    import faiss  # noqa: F401
    import onnxruntime  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"rankfall.serving needs {error.name}, which is not installed: pip install 'rankfall[serve]'", name=error.name
    ) from None

from rankfall.serving.bundle import Answers, Bundle, Ranking, StageTrace
from rankfall.serving.request_encoder import EncodedRequests, RequestError

__all__ = ["Answers", "Bundle", "EncodedRequests", "Ranking", "RequestError", "StageTrace"]
