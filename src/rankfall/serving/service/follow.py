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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rankfall.serving.service.board import places
from rankfall.serving.service.slots import find_bundle, fingerprint, load_checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.serving.service.board import Board
    from rankfall.serving.service.metrics import Metrics
    from rankfall.serving.service.settings import Settings
    from rankfall.serving.service.slots import Served, Slots

Result = TypeVar("Result")
_log = logging.getLogger(__name__)
_SECONDS = 0.5  # between two looks at what other workers did,
_LOOKS = 2  # every so many of which the watched places are looked at, too


class Follower:
    """Puts bundles into slots, one at a time."""

    def __init__(self, settings: Settings, slots: Slots, board: Board, metrics: Metrics) -> None:
        self._settings = settings
        self._slots = slots
        self._board = board
        self._metrics = metrics
        self._followed = {slot: entry.number for slot, entry in board.read().items() if slots[slot] is not None}
        self._refused: dict[str, str] = {}  # by slot, the fingerprint of a bundle that is not tried again
        self._last_seen: dict[str, str] = {}
        self._thread = ThreadPoolExecutor(1, "rankfall-swaps")
        self._one_at_a_time = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._parent = os.getppid()

    async def start(self) -> None:
        """Load what is missing, and keep up from now on."""
        await self._look_at_board()
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
                served = await self._in_thread(load_checked, path, self._settings.threads)
            except (ValueError, OSError) as error:
                self._metrics.swap("refused")
                _log.warning("%s keeps its bundle, another was refused: %s", slot, error)
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
        for slot, entry in (await self._in_thread(self._board.read)).items():
            if self._followed.get(slot) == entry.number:
                continue
            async with self._one_at_a_time:
                is_known = self._slots.models().get(slot) == entry.model
                if is_known or await self._try(slot, Path(entry.path)):
                    self._followed[slot] = entry.number

    async def _look_at_places(self) -> None:
        """Serve what was put into a watched place since it was looked at last."""
        for slot, place in places(self._settings).items():
            async with self._one_at_a_time:
                try:
                    found = await self._in_thread(find_bundle, place)
                except (ValueError, OSError):  # in the moment of a replacement there is nothing
                    continue
                await self._look_at(slot, found)

    async def _look_at(self, slot: str, found: Path) -> None:
        seen = await self._in_thread(fingerprint, found)
        # What is being copied looks different every time.
        is_settled = self._last_seen.get(slot) == seen
        self._last_seen[slot] = seen
        entry = (await self._in_thread(self._board.read)).get(slot)
        if is_settled and (entry is None or entry.seen != seen):
            await self._try(slot, found, seen=seen)

    async def _try(self, slot: str, path: Path, *, seen: str | None = None) -> bool:
        """Put a bundle into a slot if it is good, unless it was refused before and has not changed since.

        What was `seen` in a watched place is news for the other workers.
        """
        mark = await self._in_thread(fingerprint, path) if seen is None else seen
        if self._refused.get(slot) == mark:
            return False
        try:
            served = await self._in_thread(load_checked, path, self._settings.threads)
        except (ValueError, OSError) as error:
            self._refused[slot] = mark
            self._metrics.swap("refused")
            _log.warning("%s keeps its bundle, another was refused: %s", slot, error)
            return False
        self._put(slot, served)
        if seen is not None:
            await self._tell(slot, served, seen)
        return True

    # --- swaps ----------------------------------------------------------------------------------------------------

    def _put(self, slot: str, served: Served) -> None:
        old = [self._slots[slot]]
        self._slots.put(slot, served)
        if self._task is not None:  # what a worker starts with is no news
            self._metrics.swap("taken")
            _log.info("%s serves %s", slot, served)
        self._thread.submit(old.clear)  # files are closed there, unless somebody still waits for the old bundle

    async def _tell(self, slot: str, served: Served, seen: str | None = None) -> None:
        entry = await self._in_thread(lambda: self._board.write(slot, served, seen=seen))
        self._followed[slot] = entry.number

    async def _in_thread(self, work: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


def _let_go(old: list[Served | None]) -> None:
    """Close the files of a bundle, unless somebody still waits for its answer, and give its memory back."""
    old.clear()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc, which would keep what is free: hundreds of megabytes
        trim(0)
