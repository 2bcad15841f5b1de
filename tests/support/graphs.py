"""Graphs of models that tests export again and again, traced once in a test run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rankfall.models.build import is_own
from rankfall.storage.files import locked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankfall.cascade import Stage


@contextmanager
def traced_once() -> Iterator[None]:
    """Let bundles of the same weights share their graphs, as tracing a model takes seconds.

    The bytes of a graph depend on the model and its weights alone. Models of users are traced every time, since their
    code may change; tests of graphs themselves call ``onnx_graphs.write_graph``, which this does not change.
    """
    from rankfall.serving.export import onnx_graphs, write_bundle

    write_graph = onnx_graphs.write_graph

    def write(stage: Stage, path: Path, *, of_users: bool = False) -> None:
        if is_own(stage.model) or onnx_graphs._LARGEST_FILE == 0:  # or weights are in a file of their own
            write_graph(stage, path, of_users=of_users)
            return
        digest = hashlib.sha256(repr((stage.model, onnx_graphs.described(stage), of_users)).encode())
        for name, tensor in stage.model.state_dict().items():
            digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
            digest.update(tensor.detach().contiguous().numpy().tobytes())
        shared = Path(os.environ["RANKFALL_TESTS_SHARE"])
        graph = shared / f"{digest.hexdigest()}.onnx"
        with locked(shared / f"{graph.name}.lock", wait=True):
            if not graph.exists():
                write_graph(stage, path, of_users=of_users)
                shutil.copyfile(path, graph)
        shutil.copyfile(graph, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_bundle, "write_graph", write)
        yield
