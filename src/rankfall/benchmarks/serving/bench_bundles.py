"""Bundles to measure, requests for them, and bundles that no service may take."""

from __future__ import annotations

import json
import os
import random
import shutil
from typing import TYPE_CHECKING, Any

from rankfall._files import write_file
from rankfall._manifest import MANIFEST
from rankfall.serving.bundle_files import EXAMPLES, ITEMS, SEAL, about_files, is_bundle, read_manifest, seal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall.serving import Bundle

    OnStep = Callable[[str, int, int | None], None]  # what is done, how much of it, and of how much

KEPT_EXAMPLES = 64  # of which requests are made: each user with the history of each other


def simulated_bundle(directory: Path, items: int, *, seed: int, on_step: OnStep) -> Path:
    """A simulated bundle of so many items, which is made unless the directory has it."""
    path = directory / f"simulated-{items}-{seed}"
    if is_bundle(path):
        about = read_manifest(path)["source"].get("simulated", {})
        if (about.get("items"), about.get("seed")) == (items, seed):
            return path
    import torch

    from rankfall.serving.export.simulated_source import simulated_source
    from rankfall.serving.export.write_bundle import write_bundle

    torch.set_num_threads(1)
    on_step("simulating", 0, None)
    directory.mkdir(parents=True, exist_ok=True)
    write_bundle(simulated_source(items, seed=seed), path, examples=KEPT_EXAMPLES, force=True, on_step=on_step)
    return path


def requests_like_examples(bundle: Bundle, count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Requests of the users of a bundle's examples, each with the sequences of any of them."""
    examples = [example["request"] for example in bundle.examples()]
    if not examples:
        raise ValueError(
            f"bundle: {bundle.path} has no examples, of which requests are made; export it with --examples"
        )
    choose = random.Random(seed)
    made = []
    for _ in range(count):
        user, other = choose.choices(examples, k=2)
        made.append({**user, **({"sequences": other["sequences"]} if "sequences" in other else {})})
    return made


# --- bad ones -----------------------------------------------------------------------------------------------------


def bad_bundles(bundle: Path, directory: Path) -> dict[str, Path]:
    """Twins of a bundle with something wrong, by what that is."""
    makers = {"a changed file": _change_file, "a graph that is cut off": _cut_graph, "other answers": _change_answers}
    made = {}
    for number, (what, spoil) in enumerate(makers.items()):
        made[what] = directory / f"bad-{number}"
        shutil.copytree(bundle.resolve(), made[what], copy_function=os.symlink)  # a copy may be large
        spoil(made[what])
    return made


def _change_file(path: Path) -> None:
    content = bytearray((path / ITEMS).read_bytes())
    content[len(content) // 2] ^= 1
    write_file(path / ITEMS, bytes(content))  # in place of the link, what that led to stays as it is


def _cut_graph(path: Path) -> None:
    """With right checksums, so that only who loads the graph can tell."""
    graph = sorted(path.glob("stages/*/*.onnx"))[0]
    write_file(graph, graph.read_bytes()[: graph.stat().st_size // 2])
    seal_again(path)


def _change_answers(path: Path) -> None:
    """With right checksums, so that only who answers the examples can tell."""
    examples = json.loads((path / EXAMPLES).read_text(encoding="utf-8"))
    examples[-1]["scores"][0] += 1.0
    write_file(path / EXAMPLES, json.dumps(examples))
    seal_again(path)


def seal_again(path: Path) -> None:
    """Give a bundle that was changed the checksums of what it has now."""
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    (path / MANIFEST).unlink()
    manifest["files"] = about_files(path)
    manifest[SEAL] = seal(manifest)
    write_file(path / MANIFEST, json.dumps(manifest))
