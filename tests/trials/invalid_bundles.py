"""Invalid bundles that a service has to refuse."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import numpy as np

from rankfall.serving.bundle_files import EXAMPLES, ITEMS
from rankfall.storage.manifests import MANIFEST, about_files, write_manifest

if TYPE_CHECKING:
    from pathlib import Path


def bad_bundles(bundle: Path, directory: Path) -> dict[str, Path]:
    """Create invalid copies of a bundle; return their paths by the defect."""
    makers = {
        "a changed file": _change_file,
        "a graph that is cut off": _cut_graph,
        "a graph of another stage": _exchange_graph,
        "other answers": _change_answers,
        "a graph with a loop": _loop,
    }
    if any(bundle.glob("stages/*/*.faiss")):
        makers["an index whose lists are in another file"] = _index_on_disk
    made = {}
    for number, (what, spoil) in enumerate(makers.items()):
        made[what] = directory / f"bad-{number}"
        shutil.copytree(bundle.resolve(), made[what], copy_function=os.symlink)  # bundles may be large
        spoil(made[what])
    return made


def _change_file(path: Path) -> None:
    content = bytearray((path / ITEMS).read_bytes())
    content[len(content) // 2] ^= 1
    _replace(path / ITEMS, bytes(content))


def _cut_graph(path: Path) -> None:
    """Truncate a graph; the checksums match, so that only loading it shows the defect."""
    graph = sorted(path.glob("stages/*/*.onnx"))[0]
    _replace(graph, graph.read_bytes()[: graph.stat().st_size // 2])
    seal_again(path)


def _exchange_graph(path: Path) -> None:
    """Replace a graph by that of the last stage, or if there is only one stage, by nothing; the checksums match."""
    first, *others = sorted(path.glob("stages/*/*.onnx"))
    _replace(first, others[-1].read_bytes() if others else b"")
    seal_again(path)


def _change_answers(path: Path) -> None:
    """Change an expected score; the checksums match, so that only ranking the examples shows the defect."""
    examples = json.loads((path / EXAMPLES).read_text(encoding="utf-8"))
    examples[-1]["scores"][0] += 1.0
    _replace(path / EXAMPLES, json.dumps(examples).encode())
    seal_again(path)


def _index_on_disk(path: Path) -> None:
    """Replace an index by one of which faiss would open a file for writing; the checksums match."""
    import faiss

    (file,) = path.glob("stages/*/*.faiss")
    size = faiss.read_index(str(file)).d + 1
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(size), size, 1)
    index.quantizer.add(np.zeros((1, size), np.float32))
    index.is_trained = True
    index.make_direct_map()
    lists = faiss.OnDiskInvertedLists(1, index.code_size, str(path.parent / "lists.scratch"))
    index.replace_invlists(lists)
    _replace(file, faiss.serialize_index(index).tobytes())
    seal_again(path)


def _loop(path: Path) -> None:
    """Append a node to a graph: protocol buffers that follow each other are one; the checksums match."""
    graph = sorted(path.glob("stages/*/*.onnx"))[0]
    _replace(graph, graph.read_bytes() + b"\x3a\x08\x0a\x06\x22\x04Loop")
    seal_again(path)


def _replace(file: Path, content: bytes) -> None:
    """Replace a link to a file of the good bundle, which must not change."""
    file.unlink()
    file.write_bytes(content)


def seal_again(path: Path) -> None:
    """Update the checksums of a bundle that was changed."""
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    (path / MANIFEST).unlink()
    manifest["files"] = about_files(path)
    write_manifest(path / MANIFEST, manifest)
