"""How bundles are replaced: on demand, by a look at a watched place, and by what other workers did.

Every worker loads what it serves. A new bundle takes its slot after it was loaded and checked in a thread of its own;
one that is refused leaves everything as it was.
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

from rankfall.serving.service.bundle_slots import find_bundles, find_strangers, fingerprint, load_checked
from rankfall.serving.service.settings import LONGEST_DEADLINE
from rankfall.serving.service.shared_state import places

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.serving.service.bundle_slots import Served, Slots
    from rankfall.serving.service.service_metrics import Metrics
    from rankfall.serving.service.settings import Settings
    from rankfall.serving.service.shared_state import Board, Entry

Result = TypeVar("Result")
_log = logging.getLogger(__name__)
_SECONDS = 0.5  # between two looks at what other workers did,
_LOOKS = 2  # every so many of which the watched places are looked at, too
_LOW = 10  # of 0 to 19, the priority of loading bundles
_UNDER_WAY = LONGEST_DEADLINE / 1000  # seconds after which all requests have let go of a bundle that was replaced
_PAUSE = 30.0  # seconds before a bundle that could not be read is tried again


class Follower:
    """Puts bundles into slots, one at a time."""

    def __init__(self, settings: Settings, slots: Slots, board: Board, metrics: Metrics) -> None:
        self._settings = settings
        self._slots = slots
        self._board = board
        self._metrics = metrics
        self._followed = {slot: entry.number for slot, entry in board.read().items() if slots[slot] is not None}
        # by slot and path: the fingerprint of a bundle that is not tried until some time, and that of the last look
        self._refused: dict[tuple[str, Path], tuple[str, float]] = {}
        self._last_seen: dict[tuple[str, Path], str] = {}
        self._strangers: dict[tuple[str, Path], str] = {}  # what was no bundle, which it may be when it can be read
        self._thread = ThreadPoolExecutor(1, "rankfall-swaps")
        self._one_at_a_time = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._parent = os.getppid()

    async def start(self) -> None:
        """Load what is missing, and keep up from now on."""
        await self._look_at_board()
        await self._in_thread(_step_back)
        self._task = asyncio.create_task(self._keep_up())

    async def stop(self) -> None:
        """Follow nobody any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def reload(self, slot: str, path: Path) -> tuple[str, str | None]:
        """Put the bundle of a path into a slot: the names of the new model and of the one before.

        A bundle that is not good is a ValueError or an OSError.
        """
        async with self._one_at_a_time:
            before = self._slots.models().get(slot)
            try:
                served = await self._in_thread(load_checked, path)
            except (ValueError, OSError) as error:
                self._refuse(slot, error)
                raise
            self._put(slot, served)
            await self._tell(slot, served)
            return served.model, before

    # --- keeping up -----------------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(_SECONDS)
            looks += 1
            try:
                self._check_parent()
                self._metrics.look()
                await self._look_at_board()
                if self._settings.watch and looks % _LOOKS == 0:
                    await self._look_at_places()
            except Exception:
                _log.exception("a look for new bundles failed; there will be another")

    def _check_parent(self) -> None:
        """End with the process that started the workers, if it was killed and could neither say so nor clean up."""
        shared = self._settings.shared
        if shared is not None and os.getppid() != self._parent:
            shutil.rmtree(shared, ignore_errors=True)
            os.kill(os.getpid(), signal.SIGTERM)

    async def _look_at_board(self) -> None:
        """Serve what another worker serves."""
        async with self._one_at_a_time:  # a reload of our own meanwhile would be undone
            for slot, entry in (await self._in_thread(self._board.read)).items():
                if self._followed.get(slot) != entry.number:
                    await self._follow(slot, entry)

    async def _follow(self, slot: str, entry: Entry) -> None:
        if self._slots.models().get(slot) != entry.model and not await self._try(slot, Path(entry.path)):
            return
        self._followed[slot] = entry.number
        served = self._slots[slot]
        if served is not None and served.model != entry.model:  # it was replaced there: all have to serve the same
            await self._tell(slot, served)

    async def _look_at_places(self) -> None:
        """Serve what was put into a watched place since it was looked at last."""
        for slot, place in places(self._settings).items():
            async with self._one_at_a_time:
                try:
                    await self._look_at_strangers(slot, place)
                    found = await self._in_thread(self._found, slot, place)
                except (ValueError, OSError):  # in the moment of a replacement there is nothing
                    continue
                for path in found:
                    if await self._look_at(slot, path):
                        break

    def _found(self, slot: str, place: Path) -> list[Path]:
        """The newest bundle of a place; for a slot that has none, any may do."""
        return list(islice(find_bundles(place), None if self._slots[slot] is None else 1))

    async def _look_at_strangers(self, slot: str, place: Path) -> None:
        """Refuse what is newer than all bundles and is none itself, once until it changes."""
        for path, why in await self._in_thread(lambda: list(find_strangers(place))):
            seen = await self._in_thread(fingerprint, path)
            if self._is_settled(slot, path, seen) and self._strangers.get((slot, path)) != seen:
                self._strangers[slot, path] = seen
                self._refuse(slot, ValueError(why))

    async def _look_at(self, slot: str, found: Path) -> bool:
        """Whether a bundle was new, good, and is served now."""
        seen = await self._in_thread(fingerprint, found)
        is_settled = self._is_settled(slot, found, seen)
        entry = (await self._in_thread(self._board.read)).get(slot)
        is_news = entry is None or entry.seen != seen
        return is_settled and is_news and await self._try(slot, found, seen=seen)

    def _is_settled(self, slot: str, path: Path, seen: str) -> bool:
        """Whether it is as at the last look; what is being copied looks different every time."""
        before, self._last_seen[slot, path] = self._last_seen.get((slot, path)), seen
        return before == seen

    async def _try(self, slot: str, path: Path, *, seen: str | None = None) -> bool:
        """Put a bundle into a slot if it is good, unless it was refused before and has not changed since.

        What was `seen` in a watched place is news for the other workers.
        """
        mark = await self._in_thread(fingerprint, path) if seen is None else seen
        refused, until = self._refused.get((slot, path), ("", 0.0))
        if refused == mark and monotonic() < until:
            return False
        try:
            served = await self._in_thread(load_checked, path)
        except (ValueError, OSError) as error:
            passes = isinstance(error, OSError)  # too few file handles, a disk that is away
            self._refused[slot, path] = mark, monotonic() + _PAUSE if passes else inf
            self._refuse(slot, error)
            return False
        self._put(slot, served)
        if seen is not None:
            await self._tell(slot, served, seen)
        return True

    def _refuse(self, slot: str, error: Exception) -> None:
        self._metrics.swap("refused")
        kept = "has no bundle" if self._slots[slot] is None else "keeps its bundle, another was refused"
        _log.warning("%s %s: %s", slot, kept, error)

    # --- swaps ----------------------------------------------------------------------------------------------------

    def _put(self, slot: str, served: Served) -> None:
        old = self._slots[slot]
        self._slots.put(slot, served)
        if self._task is not None:  # what a worker starts with is no news
            self._metrics.swap("taken")
            _log.info("%s serves %s", slot, served)
        if old is not None:
            gone = threading.Event()
            weakref.finalize(old, gone.set)
            # in a thread of its own, as nobody is to wait for those who still wait for the old bundle
            threading.Thread(target=_let_go, args=([old], gone), name="rankfall-lets-go", daemon=True).start()

    async def _tell(self, slot: str, served: Served, seen: str | None = None) -> None:
        entry = await self._in_thread(lambda: self._board.write(slot, served, seen=seen))
        self._followed[slot] = entry.number

    async def _in_thread(self, work: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


def _step_back() -> None:
    """Let other threads have the cores first: requests wait for them, and nobody for a swap."""
    if sys.platform != "linux":  # where threads have priorities of their own
        return
    try:
        os.setpriority(os.PRIO_PROCESS, 0, max(_LOW, os.getpriority(os.PRIO_PROCESS, 0)))
    except OSError as error:  # not allowed in some sandboxes, and not needed
        _log.info("bundles are loaded with the usual priority: %s", error)


def _let_go(old: list[Served], gone: threading.Event) -> None:
    """Close the files of a bundle when nobody waits for its answer any more, and give its memory back."""
    old.clear()
    gone.wait(_UNDER_WAY)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc, which would keep what is free: hundreds of megabytes
        trim(0)
