"""Bundles of strangers: indexes, graphs and tables that do more than those of ``rankfall export`` are not read."""

from __future__ import annotations

import json
import os
import shutil
import struct
from typing import TYPE_CHECKING, Any

import faiss
import flatbuffers  # type: ignore[import-untyped]  # which onnxruntime needs
import numpy as np
import onnx
import pyarrow as pa
import pytest
from onnx import TensorProto, helper, numpy_helper

from rankfall.cascade import Stage
from rankfall.data.impressions.spec import Feature, Features, Sequence
from rankfall.models import ACTIVATIONS, DIN, EmbeddingMLP, TwoTower
from rankfall.serving.bundle import Bundle
from rankfall.serving.bundle_files import OPERATORS, OTHER_OPERATORS, MemoryFile, check_index, read_table
from rankfall.serving.export import onnx_graphs
from rankfall.serving.export.onnx_graphs import write_index
from rankfall.serving.service import bundle_slots, bundle_trial
from rankfall.serving.service import settings as limits
from rankfall.serving.service.bundle_slots import load_checked
from support.bundles import platform_bundle
from support.services import requests, running
from trials.invalid_bundles import seal_again

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GRAPH, INDEX, DATA = "stages/ranking/scorer.onnx", "stages/retrieval/items.faiss", "stages/ranking/scorer.onnx.data"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    path: Path = shutil.copytree(platform_bundle(), tmp_path / "bundle")
    return path


# --- indexes ------------------------------------------------------------------------------------------------------


def _in_lists(count: int = 40, size: int = 3, lists: int = 4) -> Any:
    vectors = np.random.default_rng(0).normal(size=(count, size)).astype(np.float32)
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(size), size, lists)
    index.cp.min_points_per_centroid = 1
    index.train(vectors)
    index.add(vectors)
    index.make_direct_map()
    return index


def _content(index: Any) -> bytes:
    content: bytes = faiss.serialize_index(index).tobytes()
    return content


def _on_disk(tmp_path: Path, size: int = 3) -> bytes:
    """An index whose lists are in a file of the victim."""
    index = _in_lists(size=size)
    (tmp_path / "secret").write_bytes(b"\0" * 10_000)
    lists = faiss.OnDiskInvertedLists(index.nlist, index.code_size, str(tmp_path / "secret"))
    lists.merge_from_1(index.invlists)
    index.replace_invlists(lists)
    return _content(index)


def _nested(tmp_path: Path) -> bytes:
    """The same one level deeper, in an index that finds the lists of another."""
    inner = faiss.deserialize_index(np.frombuffer(_on_disk(tmp_path), np.uint8))
    index = faiss.IndexIVFFlat(inner, 3, 4)
    index.is_trained = True
    return _content(index)


def _misplaced(tmp_path: Path, place: int = (3 << 32) | 2**31) -> bytes:
    """An item far outside of its list: faiss would return what is in the memory there."""
    index = _in_lists()
    faiss.vector_to_array(index.direct_map.array)
    faiss.copy_array_to_vector(np.full(40, place, np.int64), index.direct_map.array)
    return _content(index)


HOSTILE_INDEXES: dict[str, Callable[[Path], bytes]] = {
    "a part of type 'ilod'": _on_disk,
    "a part of type 'IwFl', expected IxF2": _nested,
    "places of items outside of its lists": _misplaced,
    "places of other items": lambda path: _misplaced(path, 0),
    "a part of type 'IHNf'": lambda path: _content(faiss.IndexHNSWFlat(3, 4)),
    "a part of type 'IxPT'": lambda path: _content(
        faiss.IndexPreTransform(faiss.LinearTransform(3, 3), faiss.IndexFlatIP(3))
    ),
    "bytes after its end": lambda path: _content(_in_lists()) + b"\0",
    "bytes and needs": lambda path: _content(_in_lists())[:-1],
}


@pytest.mark.parametrize("message", HOSTILE_INDEXES)
def test_other_indexes_are_refused(tmp_path: Path, message: str) -> None:
    content = HOSTILE_INDEXES[message](tmp_path)
    with pytest.raises(ValueError, match=f"is not an index that 'rankfall export' writes: it has .*{message}"):
        check_index(MemoryFile(tmp_path / "items.faiss", content), 2)


@pytest.mark.parametrize("count", [3, 400])  # few vectors leave most lists empty, which is written differently
def test_indexes_of_export_are_accepted(tmp_path: Path, count: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    for exact_below in (0, 1000):
        if count > 3 or exact_below:
            write_index(vectors, vectors, tmp_path, quota=1, recall=0.01, exact_below=exact_below)
            check_index(MemoryFile(tmp_path, (tmp_path / "items.faiss").read_bytes()), 3)
    sparse = _in_lists(count=40, lists=30)
    sparse.reset()
    sparse.add(np.zeros((2, 3), np.float32))
    sparse.make_direct_map()
    assert b"sprs" in _content(sparse)
    check_index(MemoryFile(tmp_path, _content(sparse)), 2)


def test_every_changed_number_of_an_index_is_refused_or_read_safely(tmp_path: Path) -> None:
    """What the check accepts, faiss reads; and all of its vectors are in the file."""
    content = _content(_in_lists())
    dice = np.random.default_rng(0)
    for _ in range(400):
        changed = bytearray(content)
        place = int(dice.integers(0, len(content) - 8))
        changed[place : place + 8] = dice.choice([b"\xff" * 8, b"\0" * 8, b"\0\0\0\1\0\0\0\0", dice.bytes(8)])
        try:
            check_index(MemoryFile(tmp_path, bytes(changed)), 2)
        except ValueError:
            continue
        index = faiss.deserialize_index(np.frombuffer(bytes(changed), np.uint8))
        for vector in index.reconstruct_batch(np.arange(40)):
            assert vector.tobytes() in changed


def test_search_ends_whatever_the_manifest_says(copied: Path) -> None:
    """With distances that are NaN and a negative number of lists, a search for more items did not end."""
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["stages"][0]["index"]["nprobe"] = -1
    (copied / "manifest.json").write_text(json.dumps(manifest))
    seal_again(copied)
    with pytest.raises(ValueError, match=r"items\.faiss cannot be searched in -1 of 1 lists"):
        Bundle.load(copied)


# --- graphs -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_operators_are_those_of_the_models(tmp_path: Path) -> None:
    """All activations, two in each model, and all other options."""
    features = Features(
        (Feature("id", "user", "id", 9), Feature("age", "user"), Feature("video", "item", "video", 9)),
        (Sequence("clicks", 6, ("video",)),),
    )
    options: dict[str, Any] = {"hidden": [4, 4], "batch_norm": True, "residual": True}
    names: list[Any] = list(ACTIVATIONS)
    models: list[tuple[Any, bool]] = [
        (DIN(features, attention=3, activation=one, attention_activation=other, **options), False)
        for one, other in zip(names[::2], [*names[1::2], "relu"], strict=True)
    ]
    models += [(EmbeddingMLP(features, **options), False)]
    models += [(TwoTower(features, hidden=[4, 3]), of_users) for of_users in (False, True)]
    found = set()
    for model, of_users in models:
        onnx_graphs.write_graph(Stage("one", model.eval(), 1), tmp_path / "graph.onnx", of_users=of_users)
        found |= {node.op_type for node in onnx.load(tmp_path / "graph.onnx").graph.node}
    assert found == OPERATORS
    assert not OPERATORS & OTHER_OPERATORS


def _changed_graph(path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    proto = onnx.load(path / GRAPH)
    change(proto)
    (path / GRAPH).write_bytes(proto.SerializeToString())
    seal_again(path)


def _loop(proto: onnx.ModelProto) -> None:
    """A loop of 2^62 steps, whose result nothing needs."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["goes"])],
        "body",
        [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", 7), ("going", 9))],
        [helper.make_tensor_value_info("goes", 9, [])],
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.array(2**62), "trips"))
    proto.graph.node.insert(0, helper.make_node("Loop", ["trips", ""], [], body=body))


def _large(operator: str) -> Callable[[onnx.ModelProto], None]:
    def change(proto: onnx.ModelProto) -> None:
        proto.graph.initializer.append(numpy_helper.from_array(np.array([2**15, 2**15]), "large"))
        given = ["large"] if operator == "ConstantOfShape" else ["one", "large"]
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "one"))
        proto.graph.node.insert(0, helper.make_node(operator, given, ["filled"]))
        proto.graph.node.insert(1, helper.make_node("ReduceMax", ["filled"], ["number"], keepdims=0))
        proto.graph.node.append(helper.make_node("Max", [proto.graph.output[0].name, "number"], ["other"]))
        proto.graph.output[0].name = "other"

    return change


def _domain(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].domain = "com.microsoft"


def _function(proto: onnx.ModelProto) -> None:
    proto.functions.append(helper.make_function("own", "Relu", ["x"], ["y"], [], [helper.make_opsetid("", 20)]))


def _external(proto: onnx.ModelProto) -> None:
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret")


def _external_constant(proto: onnx.ModelProto) -> None:
    tensor = numpy_helper.from_array(np.ones(4, np.float32), "constant")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../secret")
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["unused"], value=tensor))


HOSTILE_GRAPHS: dict[str, Callable[[onnx.ModelProto], None]] = {
    "it has the operator 'Loop'": _loop,
    "it has the operator 'ConstantOfShape'": _large("ConstantOfShape"),
    "it has operators of other libraries": _domain,
    "it has functions of its own": _function,
    "it has weights in the file 'secret', which is not in the bundle": _external,
    r"it has weights in the file '\.\./\.\./\.\./secret', which is not": _external_constant,
}


@pytest.mark.parametrize("message", HOSTILE_GRAPHS)
def test_other_graphs_are_refused(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_bytes(os.urandom(100_000))  # onnxruntime would read it from the current directory
    _changed_graph(copied, HOSTILE_GRAPHS[message])
    with pytest.raises(ValueError, match=rf"scorer\.onnx is not a graph that 'rankfall export' writes: {message}"):
        Bundle.load(copied)


def test_tags_of_more_than_32_bits_hide_no_operator(copied: Path) -> None:
    """Onnxruntime drops the upper bits of a tag: what a check takes for an unknown field is a node for it."""
    node = helper.make_node("Loop", [], []).SerializeToString()
    hidden = b"\x8a\x80\x80\x80\x10" + bytes([len(node)]) + node  # the tag of a node, and bit 32
    (copied / GRAPH).write_bytes((copied / GRAPH).read_bytes() + b"\x3a" + bytes([len(hidden)]) + hidden)
    seal_again(copied)
    with pytest.raises(ValueError, match=r"scorer\.onnx is not a graph: it is damaged"):
        Bundle.load(copied)


def test_graph_in_the_format_of_onnxruntime_is_refused(copied: Path) -> None:
    (copied / GRAPH).write_bytes(b"\x22\x06\0\0ORTM" + b"\0" * 100)
    seal_again(copied)
    with pytest.raises(ValueError, match="is not a graph"):
        Bundle.load(copied)


# --- tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_tables_are_refused_before_they_are_read(copied: Path, compression: str) -> None:
    with pa.ipc.open_file(copied / "items.arrow") as file:
        table = file.read_all()
    table = table.append_column("large", pa.array(np.zeros((len(table)), np.int64)))
    with (
        (copied / "items.arrow").open("wb") as out,
        pa.ipc.new_file(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer,
    ):
        writer.write_table(table)
    seal_again(copied)
    with pytest.raises(ValueError, match=r"items\.arrow is compressed"):
        Bundle.load(copied)


def test_compression_of_early_arrow_releases_is_refused(tmp_path: Path) -> None:
    """It is in the metadata of a message instead of its header: 100 bytes that Arrow would read as 80,000."""
    schema = pa.schema([("large", pa.int64())])
    numbers = pa.array(np.zeros(10_000, np.int64))
    block = pa.compress(numbers.buffers()[1], "zstd", asbytes=True)
    body = struct.pack("<q", 80_000) + block
    builder = flatbuffers.Builder()
    key, codec = builder.CreateString("ARROW:experimental_compression"), builder.CreateString("zstd")
    pair = _flat_table(builder, (0, "UOffsetTRelative", key), (1, "UOffsetTRelative", codec))
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(pair)
    metadata = builder.EndVector()
    buffers = _flat_pairs(builder, (0, 0), (0, len(body)))
    nodes = _flat_pairs(builder, (len(numbers), 0))
    batch = _flat_table(
        builder, (0, "Int64", len(numbers)), (1, "UOffsetTRelative", nodes), (2, "UOffsetTRelative", buffers)
    )
    fields = ((0, "Int16", 3), (1, "Uint8", 3), (2, "UOffsetTRelative", batch), (3, "Int64", len(body)))  # version 4
    builder.Finish(_flat_table(builder, *fields, (4, "UOffsetTRelative", metadata)))
    header = bytes(builder.Output())
    header += bytes(-len(header) % 8)
    message = b"\xff\xff\xff\xff" + struct.pack("<i", len(header)) + header + body + bytes(-len(body) % 8)
    assert pa.ipc.read_record_batch(pa.ipc.read_message(message), schema)["large"].equals(numbers)
    content = b"ARROW1\0\0" + schema.serialize().to_pybytes() + message
    with pytest.raises(ValueError, match=r"items\.arrow is compressed"):
        read_table(MemoryFile(tmp_path / "items.arrow", content))


def _flat_table(builder: Any, *fields: tuple[int, str, int]) -> int:
    """Add a table with these fields (slot, kind, value) to a flat buffer."""
    builder.StartObject(5)
    for slot, kind, value in fields:
        getattr(builder, f"Prepend{kind}Slot")(slot, value, 0)
    table: int = builder.EndObject()
    return table


def _flat_pairs(builder: Any, *pairs: tuple[int, int]) -> int:
    """Add a vector of pairs of numbers to a flat buffer."""
    builder.StartVector(16, len(pairs), 8)
    for number in (number for pair in reversed(pairs) for number in reversed(pair)):
        builder.PrependInt64(number)
    vector: int = builder.EndVector()
    return vector


# --- limits of a service ------------------------------------------------------------------------------------------


def test_graph_that_needs_too_much_memory_is_refused(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 GB from operators that models may use; the process that serves never allocates them."""
    monkeypatch.setattr(limits, "TRIAL_BYTES", 2**28)
    load_checked(platform_bundle())  # which the limit does not concern
    _changed_graph(copied, _large("Expand"))
    with pytest.raises(ValueError, match=r"it may use [\d,]+ bytes of memory"):
        load_checked(copied)


def test_graph_that_needs_too_much_time_is_refused(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def multiply(proto: onnx.ModelProto) -> None:
        size = 3000
        proto.graph.initializer.append(numpy_helper.from_array(np.array([size, size]), "large"))
        proto.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "one"))
        nodes = [helper.make_node("Expand", ["one", "large"], ["power0"])]
        nodes += [helper.make_node("MatMul", [f"power{n}", "power0"], [f"power{n + 1}"]) for n in range(200)]
        for place, node in enumerate([*nodes, helper.make_node("ReduceMax", ["power200"], ["number"], keepdims=0)]):
            proto.graph.node.insert(place, node)
        proto.graph.node.append(helper.make_node("Max", [proto.graph.output[0].name, "number"], ["other"]))
        proto.graph.output[0].name = "other"

    monkeypatch.setattr(limits, "TRIAL_SECONDS", 3)
    _changed_graph(copied, multiply)
    with pytest.raises(ValueError, match="needs more than 3 seconds"):
        load_checked(copied)


@pytest.mark.parametrize("late", [False, True])
def test_bundle_that_is_replaced_around_its_trial_is_refused(
    copied: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """What is served is what was tried: a trial says nothing about files that replace it, or that it replaced."""
    module, name = (bundle_slots, "try_bundle") if late else (bundle_trial, "read_manifest")
    before = getattr(module, name)

    def replaced(*arguments: Any) -> Any:
        found = before(*arguments)
        (copied / "examples.json").write_text("[]")
        seal_again(copied)
        return found

    monkeypatch.setattr(module, name, replaced)
    with pytest.raises(ValueError, match="bundle has been replaced since it was tried"):
        load_checked(copied)


def test_service_refuses_hostile_bundles_and_keeps_its_own(copied: Path, tmp_path: Path) -> None:
    expected = Bundle.load(platform_bundle()).rank(requests()[0]).ids
    on_disk = shutil.copytree(copied, tmp_path / "on-disk")
    (on_disk / INDEX).write_bytes(_on_disk(tmp_path, Bundle.load(copied).manifest["stages"][0]["index"]["size"] + 1))
    seal_again(on_disk)
    _changed_graph(copied, _loop)
    with running(platform_bundle()) as service, service.client() as client:
        for path, why in ((copied, "the operator 'Loop'"), (on_disk, "a part of type 'ilod'")):
            answer = client.reload(path)
            assert answer.code == 409
            assert why in json.dumps(answer.json)
            assert client.post("/rank", requests()[0]).json["ids"] == expected
