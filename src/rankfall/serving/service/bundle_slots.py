"""The bundles that are served: slot `main`, and slot `other` for comparison."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import shutil
import signal
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from rankfall._errors import RankfallError
from rankfall.serving.bundle import Bundle
from rankfall.serving.bundle_files import errors_name, is_bundle, remove_unused_copies, why_no_bundle
from rankfall.serving.service import settings as limits
from rankfall.serving.service.bundle_trial import try_bundle
from rankfall.storage.files import locked, read_json_file, write_file
from rankfall.storage.manifests import MANIFEST, SEAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rankfall.serving.service.service_recording import ServiceMetrics
    from rankfall.serving.service.settings import Settings


_log = logging.getLogger(__name__)
SLOTS = MAIN, OTHER = ("main", "other")
_MODEL_NAME_LENGTH = 12  # characters of the bundle's checksum
_UNFINISHED = ".unfinished"
_RUN_FILES = ("config.yaml", "checkpoints")


@dataclass(frozen=True, eq=False)
class ServedBundle:
    """A bundle and the name of its model in responses."""

    model: str
    bundle: Bundle

    def describe(self) -> dict[str, Any]:
        """Return the description of the bundle for clients."""
        manifest = self.bundle.manifest
        return {
            "model": self.model,
            "path": self.bundle.path.resolve().name,
            "items": len(self.bundle.items),
            "stages": [
                {
                    **{key: stage[key] for key in ("name", "quota", "kind", "index") if key in stage},
                    "model": stage.get("model", {}).get("kind"),
                }
                for stage in manifest["stages"]
            ],
            "made_by": manifest.get("made_by"),
            "metrics": manifest.get("source", {}).get("metrics"),
            "measured": manifest.get("measured"),
            "display": manifest.get("display", []),
            "schema": self.bundle.schema(),
        }

    def __str__(self) -> str:
        """Return the model and its funnel in one line."""
        funnel = " -> ".join(f"{stage.name} {stage.quota:,}" for stage in self.bundle.stages)
        return f"model {self.model}, {len(self.bundle.items):,} items -> {funnel}"


def model_name(manifest: Mapping[str, Any]) -> str:
    """Return the name of a model, from the checksum of its bundle."""
    return str(manifest[SEAL])[:_MODEL_NAME_LENGTH]


class BundleSlots:
    """The served bundle of each slot.

    A bundle is replaced by a single assignment; requests in progress keep the old one.
    """

    def __init__(self) -> None:
        self._served: dict[str, ServedBundle | None] = dict.fromkeys(SLOTS)
        self.version = 0  # grows with every change

    def __getitem__(self, slot: str) -> ServedBundle | None:
        """Return the bundle of a slot, or None."""
        return self._served[slot]

    def put(self, slot: str, served: ServedBundle) -> None:
        """Serve a bundle in a slot."""
        self._served[slot] = served
        self.version += 1

    def models(self) -> dict[str, str]:
        """Return the model names by slot."""
        return {slot: served.model for slot, served in self._served.items() if served is not None}


def load_checked(path: Path, copies: Path | None = None) -> ServedBundle:
    """Try a bundle in a process with limits, load it, verify its checksums and examples, and rank a minimal request.

    Args:
        path: A bundle, or a directory of bundles.
        copies: Directory through which several workers share the memory of the files.

    Raises:
        ValueError: If the bundle is invalid, cannot rank, or needs too much memory or time.
        OSError: If its files cannot be read.
    """
    found = find_bundle(path)
    with errors_name(found):
        seal = try_bundle(found, copies)
    return load_untried(found, copies, seal)


def load_untried(path: Path, copies: Path | None, seal: str) -> ServedBundle:
    """Load and check the bundle with a seal at a path as :func:`load_checked` does, without limits."""
    try:
        bundle = Bundle.load(path, shared=copies, seal=seal)
        bundle.check()
        minimal: dict[str, Any] = {}  # with only the dense features, which are required
        for group in ("user", "context"):
            dense = {name: of for name, of in bundle.manifest["request"][group].items() if of["kind"] == "dense"}
            minimal[group] = {name: 0.0 if of["size"] == 1 else [0.0] * of["size"] for name, of in dense.items()}
        ranking = bundle.rank(minimal, explain=True)
    except (ValueError, OSError):
        raise
    except Exception as error:  # onnxruntime and faiss raise their own classes
        raise RankfallError(f"path: {path} cannot rank a request ({error!r})") from None
    if not ranking.ids:
        raise RankfallError(f"path: {path} returns no items for a request")
    return ServedBundle(model_name(bundle.manifest), bundle)


def find_bundle(path: Path) -> Path:
    """Return `path` if it is a bundle, or the bundle of that directory whose manifest was written last.

    Raises:
        ValueError: If there is no bundle.
    """
    invalid = list(find_newer_invalid(path)) if path.is_dir() else []
    for bundle in find_bundles(path):
        for directory, reason in invalid:
            _log.warning("%s is skipped, although it is newer than every bundle: %s", directory, reason)
        return bundle
    hint = invalid[0][1] if invalid else "see 'rankfall export --help'"
    raise RankfallError(f"path: {path} is a directory without bundles ({hint})")


def find_bundles(path: Path) -> Iterator[Path]:
    """Yield `path` if it is a bundle, or the bundles of that directory, the newest first.

    Raises:
        ValueError: If the path is neither a bundle nor a directory that may contain bundles.
    """
    if is_bundle(path):
        yield path
        return
    if not path.exists():
        raise RankfallError(f"path: {path} does not exist")
    if not path.is_dir():
        raise RankfallError(f"path: {path} is a file, expected a bundle or a directory of bundles")
    if all((path / part).exists() for part in _RUN_FILES):
        raise RankfallError(f"path: {path} is a run, expected a bundle; first run: rankfall export {path} --out bundle")
    yield from filter(is_bundle, _newest_first(path))


def find_newer_invalid(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield directories that are newer than all bundles and whose manifest is not that of a bundle, with the reason."""
    if is_bundle(path):
        return
    for directory in _newest_first(path) or ([path] if (path / MANIFEST).exists() else []):
        reason = why_no_bundle(directory)
        if reason is None:
            return
        yield directory, reason


def _newest_first(directory: Path) -> list[Path]:
    """Return the subdirectories that have a manifest, the newest first, without unfinished ones."""
    times: list[tuple[int, Path]] = []
    for path in directory.iterdir():
        if path.name.startswith(".") or path.name.endswith(_UNFINISHED):
            continue
        try:
            times.append(((path / MANIFEST).stat().st_mtime_ns, path))
        except OSError:  # it has no manifest, or was just removed
            continue
    return [path for _, path in sorted(times, reverse=True)]


def fingerprint(path: Path) -> str:
    """Return a text that changes with any file of a directory, without reading the files."""
    parts = []
    for file in sorted(path.rglob("*")):
        try:
            status = file.stat()
        except OSError:  # just removed; the next fingerprint will differ
            continue
        parts.append(f"{file}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}")
    return "\n".join(parts)


_ARGUMENTS = {MAIN: "bundle", OTHER: "other"}  # of the command line, by slot


@dataclass(frozen=True)
class SlotEntry:
    """The bundle of a slot.

    Args:
        version: Number that grows with every change.
        path: Directory of the bundle.
        model: Name of its model.
        seen: Fingerprint of the newest bundle at the watched path when it was last considered.
    """

    version: int
    path: str
    model: str
    seen: str


class SharedState:
    """The entries of all slots.

    Args:
        directory: Directory of the file; None keeps the entries in memory.
    """

    def __init__(self, directory: Path | None) -> None:
        self._file = None if directory is None else directory / "slots.json"
        self._entries: dict[str, SlotEntry] = {}

    def read(self) -> dict[str, SlotEntry]:
        """Return the entries by slot."""
        if self._file is None:
            return self._entries
        try:
            content = read_json_file(self._file)
        except FileNotFoundError:
            return {}
        return {slot: SlotEntry(**entry) for slot, entry in content.items()}

    def write(self, slot: str, served: ServedBundle, *, seen: str | None = None) -> SlotEntry:
        """Publish the bundle of a slot and return its entry; without `seen` the previous fingerprint stays."""
        with nullcontext() if self._file is None else locked(self._file.with_suffix(".lock"), wait=True):
            entries = self.read()
            before, path = entries.get(slot, SlotEntry(0, "", "", "")), str(served.bundle.path.resolve())
            entry = SlotEntry(before.version + 1, path, served.model, before.seen if seen is None else seen)
            self._entries = {**entries, slot: entry}
            if self._file is not None:
                write_file(self._file, json.dumps({name: asdict(one) for name, one in self._entries.items()}))
        return entry


def configured_paths(settings: Settings) -> dict[str, Path]:
    """Return the paths of the command line by slot."""
    return {MAIN: settings.bundle} | ({} if settings.other is None else {OTHER: settings.other})


def load_initial_bundles(settings: Settings, shared: SharedState) -> dict[str, ServedBundle]:
    """Load and publish the bundles with which a service starts.

    In a watched directory, the newest valid bundle is loaded; if there is none, the slot stays empty until one appears.

    Raises:
        ValueError: If a bundle is invalid, or a path cannot have a bundle.
    """
    loaded = {}
    for slot, path in configured_paths(settings).items():
        try:
            served, seen = _load_newest(path, settings)
        except ValueError as error:
            raise RankfallError(f"{_ARGUMENTS[slot]}: {str(error).removeprefix('path: ')}") from None
        if served is not None:
            loaded[slot] = served
            shared.write(slot, served, seen=seen)
    return loaded


def _load_newest(path: Path, settings: Settings) -> tuple[ServedBundle | None, str]:
    """Return the bundle of a directory, and the fingerprint of the newest one.

    In a watched directory it is the newest valid bundle, if there is one. An invalid newest bundle counts as seen, so
    that it is tried again only when it changes.
    """
    found = list(find_bundles(path)) if settings.watch else [find_bundle(path)]
    seen = fingerprint(found[0]) if found else ""  # before loading, so that a change during loading is noticed
    for bundle in found:
        try:
            return load_checked(bundle, settings.copies), seen
        except (ValueError, OSError) as error:
            if found == [path] or not settings.watch:
                raise
            _log.warning("%s is not served: %s", bundle, str(error).removeprefix("path: "))
    return None, seen


Result = TypeVar("Result")

_POLL_SECONDS = 0.5  # between two reads of the shared state
_POLLS_PER_WATCH = 2  # the watched paths are checked in every n-th poll
_NICENESS = 10  # 0 to 19: priority of the thread that loads bundles
_RETRY_SECONDS = 30.0  # after which a bundle that could not be read is tried again


class BundleReloader:
    """Loads bundles into slots, one at a time.

    Args:
        settings: Options of the service.
        slots: Receives the bundles.
        shared: State shared with other workers.
        metrics: Counts bundles that are taken or refused.
    """

    def __init__(self, settings: Settings, slots: BundleSlots, shared: SharedState, metrics: ServiceMetrics) -> None:
        self._settings = settings
        self._slots = slots
        self._shared = shared
        self._metrics = metrics
        self._applied = {slot: entry.version for slot, entry in shared.read().items() if slots[slot] is not None}
        # By slot and path: the fingerprint of a refused bundle with the time of the next attempt, the fingerprint of
        # the last check, and that of a directory that is not a bundle.
        self._refused: dict[tuple[str, Path], tuple[str, float]] = {}
        self._last_seen: dict[tuple[str, Path], str] = {}
        self._reported: dict[tuple[str, Path], str] = {}
        self._thread = ThreadPoolExecutor(1, "rankfall-swaps")
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._parent = os.getppid()

    async def start(self) -> None:
        """Load the bundles of the shared state that are missing, and start watching."""
        await self._apply_shared()
        await self._in_thread(_lower_priority)
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        """Stop watching for new bundles."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def reload(self, slot: str, path: Path) -> tuple[str, str | None]:
        """Load the bundle at a path into a slot; return the names of the new and the previous model.

        Raises:
            ValueError: If the bundle is invalid.
            OSError: If the bundle cannot be read.
        """
        async with self._lock:
            before = self._slots.models().get(slot)
            try:
                served = await self._in_thread(load_checked, path, self._settings.copies)
            except (ValueError, OSError) as error:
                self._report_refusal(slot, error)
                raise
            self._put(slot, served)
            await self._publish(slot, served)
            return served.model, before

    # --- polling --------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        polls = 0
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            polls += 1
            try:
                self._check_parent()
                self._metrics.update_queue()
                await self._apply_shared()
                if self._settings.copies is not None:
                    await self._in_thread(remove_unused_copies, self._settings.copies)
                if self._settings.watch and polls % _POLLS_PER_WATCH == 0:
                    await self._check_watched_paths()
            except Exception:
                _log.exception("checking for new bundles failed; it will be repeated")

    def _check_parent(self) -> None:
        """End this worker if its parent process was killed and could neither signal it nor remove shared files."""
        shared = self._settings.shared
        if shared is not None and os.getppid() != self._parent:
            shutil.rmtree(shared, ignore_errors=True)
            os.kill(os.getpid(), signal.SIGTERM)

    async def _apply_shared(self) -> None:
        """Load the bundles that other workers have published."""
        async with self._lock:  # otherwise a reload in this worker could be undone
            for slot, entry in (await self._in_thread(self._shared.read)).items():
                if self._applied.get(slot) != entry.version:
                    await self._apply(slot, entry)

    async def _apply(self, slot: str, entry: SlotEntry) -> None:
        if self._slots.models().get(slot) != entry.model and not await self._try(slot, Path(entry.path)):
            return
        self._applied[slot] = entry.version
        served = self._slots[slot]
        if served is not None and served.model != entry.model:  # the directory has changed: all workers must follow
            await self._publish(slot, served)

    async def _check_watched_paths(self) -> None:
        """Load bundles that have appeared at the watched paths since the last check."""
        for slot, path in configured_paths(self._settings).items():
            async with self._lock:
                try:
                    await self._report_newer_invalid(slot, path)
                    most = None if self._slots[slot] is None else 1  # for an empty slot all of them are candidates
                    found = await self._in_thread(lambda path, most: list(islice(find_bundles(path), most)), path, most)
                except (ValueError, OSError):  # while a bundle is being replaced, there is none
                    continue
                for bundle in found:
                    seen = await self._in_thread(fingerprint, bundle)
                    is_complete = self._is_unchanged(slot, bundle, seen)
                    entry = (await self._in_thread(self._shared.read)).get(slot)
                    is_new = entry is None or entry.seen != seen
                    if is_complete and is_new and await self._try(slot, bundle, seen=seen):
                        break

    async def _report_newer_invalid(self, slot: str, path: Path) -> None:
        """Report directories that are newer than all bundles and not bundles, once until they change."""
        for directory, reason in await self._in_thread(lambda: list(find_newer_invalid(path))):
            seen = await self._in_thread(fingerprint, directory)
            if self._is_unchanged(slot, directory, seen) and self._reported.get((slot, directory)) != seen:
                self._reported[slot, directory] = seen
                self._report_refusal(slot, RankfallError(reason))

    def _is_unchanged(self, slot: str, path: Path, seen: str) -> bool:
        """Whether a directory has the same fingerprint as at the last check; during a copy it changes every time."""
        before, self._last_seen[slot, path] = self._last_seen.get((slot, path)), seen
        return before == seen

    async def _try(self, slot: str, path: Path, *, seen: str | None = None) -> bool:
        """Load a bundle into a slot unless it is invalid, or was refused before and has not changed since.

        A bundle with `seen`, which comes from a watched path, is published to the other workers.
        """
        current = await self._in_thread(fingerprint, path) if seen is None else seen
        refused, retry_at = self._refused.get((slot, path), ("", 0.0))
        if refused == current and monotonic() < retry_at:
            return False
        try:
            served = await self._in_thread(load_checked, path, self._settings.copies)
        except (ValueError, OSError) as error:
            is_temporary = isinstance(error, OSError)  # too few file descriptors, an unmounted disk
            self._refused[slot, path] = current, monotonic() + _RETRY_SECONDS if is_temporary else inf
            self._report_refusal(slot, error)
            return False
        self._put(slot, served)
        if seen is not None:
            await self._publish(slot, served, seen)
        return True

    def _report_refusal(self, slot: str, error: Exception) -> None:
        self._metrics.swaps.labels("refused").inc()
        state = "has no bundle" if self._slots[slot] is None else "keeps its bundle, another was refused"
        _log.warning("%s %s: %s", slot, state, error)

    # --- replacing ------------------------------------------------------------------------------------------------

    def _put(self, slot: str, served: ServedBundle) -> None:
        old = self._slots[slot]
        self._slots.put(slot, served)
        if self._task is not None:  # the bundles at the start are not counted
            self._metrics.swaps.labels("taken").inc()
            _log.info("%s serves %s", slot, served)
        if old is not None:
            freed = threading.Event()
            weakref.finalize(old, freed.set)
            # in a separate thread, because requests may use the old bundle until their deadlines
            threading.Thread(target=_trim_memory, args=([old], freed), name="rankfall-trim", daemon=True).start()

    async def _publish(self, slot: str, served: ServedBundle, seen: str | None = None) -> None:
        entry = await self._in_thread(lambda: self._shared.write(slot, served, seen=seen))
        self._applied[slot] = entry.version

    async def _in_thread(self, work: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


def _lower_priority() -> None:
    """Lower the priority of the current thread, because requests must not wait for the loading of bundles."""
    if sys.platform != "linux":  # elsewhere the priority belongs to the whole process
        return
    try:
        os.setpriority(os.PRIO_PROCESS, 0, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    except OSError as error:  # forbidden in some sandboxes, and not essential
        _log.info("bundles are loaded with normal priority: %s", error)


def _trim_memory(old: list[ServedBundle], freed: threading.Event) -> None:
    """Drop the reference to a replaced bundle, wait until no request uses it, and return its memory to the system."""
    old.clear()
    freed.wait(limits.MAX_DEADLINE_MS / 1000)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc would keep hundreds of free megabytes
        trim(0)
