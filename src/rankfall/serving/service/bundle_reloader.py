"""Replace served bundles: on ``POST /reload``, when a watched path changes, and when another worker did.

Every worker loads its own copy; they share the memory of tables and indexes. A new bundle is loaded and checked in a
separate thread before it takes its slot. A bundle that is refused changes nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import shutil
import signal
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from rankfall.serving.memory_files import remove_unused_copies
from rankfall.serving.service import limits
from rankfall.serving.service.bundle_slots import find_bundles, find_newer_invalid, fingerprint, load_checked
from rankfall.serving.service.shared_state import configured_paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.serving.service.bundle_slots import BundleSlots, ServedBundle
    from rankfall.serving.service.service_metrics import ServiceMetrics
    from rankfall.serving.service.settings import Settings
    from rankfall.serving.service.shared_state import SharedState, SlotEntry

Result = TypeVar("Result")
_log = logging.getLogger(__name__)
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
                    found = await self._in_thread(self._candidates, slot, path)
                except (ValueError, OSError):  # while a bundle is being replaced, there is none
                    continue
                for bundle in found:
                    if await self._load_if_new(slot, bundle):
                        break

    def _candidates(self, slot: str, path: Path) -> list[Path]:
        """Return the newest bundle at a path, or all of them if the slot is empty."""
        return list(islice(find_bundles(path), None if self._slots[slot] is None else 1))

    async def _report_newer_invalid(self, slot: str, path: Path) -> None:
        """Report directories that are newer than all bundles and not bundles, once until they change."""
        for directory, reason in await self._in_thread(lambda: list(find_newer_invalid(path))):
            seen = await self._in_thread(fingerprint, directory)
            if self._is_unchanged(slot, directory, seen) and self._reported.get((slot, directory)) != seen:
                self._reported[slot, directory] = seen
                self._report_refusal(slot, ValueError(reason))

    async def _load_if_new(self, slot: str, bundle: Path) -> bool:
        """Load a bundle that is new, completely written and valid; return whether it is served now."""
        seen = await self._in_thread(fingerprint, bundle)
        is_complete = self._is_unchanged(slot, bundle, seen)
        entry = (await self._in_thread(self._shared.read)).get(slot)
        is_new = entry is None or entry.seen != seen
        return is_complete and is_new and await self._try(slot, bundle, seen=seen)

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
        self._metrics.record_swap("refused")
        state = "has no bundle" if self._slots[slot] is None else "keeps its bundle, another was refused"
        _log.warning("%s %s: %s", slot, state, error)

    # --- replacing ------------------------------------------------------------------------------------------------

    def _put(self, slot: str, served: ServedBundle) -> None:
        old = self._slots[slot]
        self._slots.put(slot, served)
        if self._task is not None:  # the bundles at the start are not counted
            self._metrics.record_swap("taken")
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
