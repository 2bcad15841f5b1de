"""Checkpoints as files and as states of what is trained."""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rankfall import _tensor_file as _checkpoint
from rankfall._tensor_file import read_checkpoint, write_checkpoint
from rankfall.data import RankingData
from rankfall.data.lists.list_loader import ListBatch, ListLoader, Lists
from rankfall.training.checkpoint import Checkpoints, join, split
from support.resuming import alter

if TYPE_CHECKING:
    from pathlib import Path


# --- files ----------------------------------------------------------------------------------------------------------


def test_no_byte_of_a_checkpoint_changes_unnoticed(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(5), "none": torch.empty(0), "bits": torch.tensor([True, False])}
    path = tmp_path / "x.safetensors"
    write_checkpoint(path, tensors, {"epoch": 3, "by number": {2: "b", 10: None}, "nan": float("nan")})
    content, rng = path.read_bytes(), random.Random(0)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in read_checkpoint(path)[0].items())
    for place in range(len(content)):
        altered = bytearray(content)
        altered[place] ^= 1 << rng.randrange(8)
        path.write_bytes(altered)
        with pytest.raises(ValueError, match=r"x.safetensors (is damaged|cannot be read|is not a checkpoint)"):
            read_checkpoint(path)


def test_others_can_read_a_checkpoint(tmp_path: Path) -> None:
    tensors = {str(dtype): (torch.randn(3, 5).T * 3).to(dtype) for dtype in _checkpoint._TYPES}
    tensors |= {"number": torch.tensor(2.5), "none": torch.empty(0, 4), "odd": torch.ones(7, dtype=torch.uint8)}
    write_checkpoint(tmp_path / "x", tensors, {})
    found = load_file(tmp_path / "x")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert oct((tmp_path / "x").stat().st_mode)[-3:] == oct(0o666 & ~_umask())[-3:]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_part_of_a_checkpoint_is_checked_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_checkpoint(path, {"a": torch.ones(5), "b": torch.ones(5)}, {})
    alter(path)
    assert torch.equal(read_checkpoint(path, lambda name: name == "a")[0]["a"], torch.ones(5))
    with pytest.raises(ValueError, match="is damaged"):
        read_checkpoint(path, lambda name: name == "b")


def test_checkpoint_without_checksum_is_refused(tmp_path: Path) -> None:
    header = {"rankfall": json.dumps({"format": "rankfall checkpoint", "version": 1, "epoch": 3})}
    save_file({"a": torch.ones(2)}, tmp_path / "x", header)
    with pytest.raises(ValueError, match=r"is not a checkpoint of this release \(version 2\); train again"):
        read_checkpoint(tmp_path / "x")


# --- parts ----------------------------------------------------------------------------------------------------------


def test_no_more_checkpoints_than_wanted_are_kept(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2)
    assert store.load(print) is None
    for step in (3, 10, 200):
        store.save(step, {"step": step})
    assert [path.name for path in store.paths()] == ["step-000000200.safetensors", "step-000000010.safetensors"]
    assert store.load(print) == {"step": 200}
    store.clear()
    assert not list(tmp_path.iterdir())


def test_a_state_is_split_and_joined() -> None:
    shared = torch.arange(3.0)
    state = {
        "a": {0: {"x": shared, 1: None}, "y": [shared, 0.1]},
        "big": 1 << 100,
        "z": torch.tensor(2, dtype=torch.int8),
    }
    tensors, plain = split(state)
    assert len(tensors) == 2
    joined = join(json.loads(json.dumps(plain)), tensors)
    assert str(joined) == str(state)
    assert joined["a"][0]["x"].data_ptr() != shared.data_ptr()
    assert joined["z"].dtype == torch.int8


def test_list_loader_resumes_at_any_batch(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = RankingData.load(data)
    lists = Lists([splits["S1"], splits["S2"]])

    def loader() -> ListLoader:
        return ListLoader(lists, batch=7, seed=3, max_list=9)

    whole = loader()
    whole.set_epoch(1)
    batches, states = [], [whole.state_dict()]
    for batch in whole:
        batches.append(batch)
        states.append(json.loads(json.dumps(whole.state_dict())))
    assert len(batches) == len(whole) == 12
    made: list[Any] = []
    make = lists.batch

    def count(numbers: Any, **options: Any) -> ListBatch:
        made.append(numbers)
        return make(numbers, **options)

    monkeypatch.setattr(lists, "batch", count)
    for done, state in enumerate(states):
        again = loader()
        again.load_state_dict(state)
        again.set_epoch(1)
        made.clear()
        left = list(again)
        assert len(made) == len(left) == 12 - done  # and none is made only to be passed over
        assert all(np.array_equal(one.rows, other.rows) for one, other in zip(left, batches[done:], strict=True))
        again.set_epoch(2)
        assert len(list(again)) == 12
    with pytest.raises(ValueError, match="state: was saved with batch = 7, this loader has 8"):
        ListLoader(lists, batch=8, seed=3, max_list=9).load_state_dict(states[2])
