"""The commands of a loop."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankfall.loop_demo.loop_files import LoopFiles

WAIT_SECONDS = 600  # of simulated time for late events
_POLL = "1"  # seconds between checks for new records and new days
_KEPT = "2"  # bundles: the one that is served, whose samples are still to be checked, and the next


class LoopCommands:
    """The arguments of ``rankfall`` for each process of a loop.

    Args:
        files: The files of the loop.
    """

    def __init__(self, files: LoopFiles) -> None:
        self._files = files

    def prepare(self) -> list[str]:
        """Prepare the log of the first days."""
        files = self._files
        tables = ["--items", str(files.items), "--requests", str(files.requests)]
        return ["prepare", "rows", str(files.rows), *tables, "--spec", str(files.spec), "--out", str(files.log)]

    def serve(self, port: int) -> list[str]:
        """Serve the newest bundle, and record what it answers and what users do."""
        recording = ["--samples", str(self._files.records), "--clock", "requests"]
        return ["serve", str(self._files.bundles), "--watch", *recording, "--port", str(port)]

    def join(self) -> list[str]:
        """Append each day of samples and events to the log."""
        files = self._files
        options = ["--items", str(files.items), "--wait", f"{WAIT_SECONDS}s", "--follow", "--poll", _POLL, "--grow"]
        return ["join", str(files.records), "--spec", str(files.spec), "--out", str(files.log), *options]

    def stream(self) -> list[str]:
        """Train on each new day, and write a bundle of the items of the next one."""
        files = self._files
        follow = ["--follow", str(files.log), "--resume", "--poll", _POLL]
        bundles = ["--bundles", _KEPT, "--items", str(files.catalogue)]
        return ["stream", str(files.config), "--out", str(files.stream), *follow, *bundles]

    def texts(self, port: int = 8080) -> list[str]:
        """Return all commands as they are typed."""
        commands = [self.prepare(), self.stream(), self.serve(port), self.join()]
        return [shlex.join(["rankfall", *arguments]) for arguments in commands]
