"""Atomic directories: complete or absent, and never a replacement of other content."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from rankfall.storage import disk as _disk
from rankfall.storage.files import (
    LeftoverWarning,
    clean_tree,
    fresh_directory,
    new_content,
    replace_link,
    scratch_directory,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def is_ours(path: Path) -> bool:
    return (path / "mark").exists()


def write(out: Path, text: str, *, force: bool = False) -> None:
    with fresh_directory(out, is_ours, force=force) as directory:
        (directory / "mark").write_text(text)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_existing_directory_is_replaced_only_with_force(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with pytest.raises(ValueError, match="exists already; --force replaces it"):
        write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "mark").read_text() == "old"
    write(tmp_path / "out", "new", force=True)
    assert (tmp_path / "out" / "mark").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_directory_created_concurrently_is_kept(tmp_path: Path) -> None:
    def both() -> None:
        with fresh_directory(tmp_path / "out", is_ours) as directory:
            (directory / "mark").write_text("slow")
            write(tmp_path / "out", "quick")

    with pytest.raises(ValueError, match="exists already"):
        both()
    assert (tmp_path / "out" / "mark").read_text() == "quick"
    assert names(tmp_path) == ["out"]


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that cannot swap two names."""
    monkeypatch.setattr(_disk, "exchange", lambda path, target: False)


def failing_at(wanted: int) -> Callable[[str, Path], None]:
    """Return a function that fails at the n-th rename."""
    left = wanted

    def hook(operation: str, path: Path) -> None:
        nonlocal left
        left -= operation == "rename"
        if operation == "rename" and left == 0:
            raise OSError("no")

    return hook


@pytest.mark.parametrize("rename", [1, 2])
def test_failed_replacement_restores_old_directory(tmp_path: Path, no_exchange: None, rename: int) -> None:
    write(tmp_path / "out", "old")
    with pytest.raises(OSError, match="no"), _disk.intercepted(failing_at(rename)):
        write(tmp_path / "out", "new", force=True)
    assert (tmp_path / "out" / "mark").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_replaced_directory_exists_at_any_time(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    seen = []

    def hook(operation: str, path: Path) -> None:
        seen.append((tmp_path / "out" / "mark").read_text())

    with _disk.intercepted(hook):
        write(tmp_path / "out", "new", force=True)
    assert sorted(set(seen)) == ["new", "old"]
    assert names(tmp_path) == ["out"]


def test_directory_is_replaced_without_exchange(tmp_path: Path, no_exchange: None) -> None:
    write(tmp_path / "out", "old")
    write(tmp_path / "out", "new", force=True)
    assert (tmp_path / "out" / "mark").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_kill_between_two_renames_is_repaired(tmp_path: Path, no_exchange: None) -> None:
    """The earlier content was lost to readers for ever when a process died between its two renames."""
    write(tmp_path / "out", "old")

    def hook(operation: str, path: Path) -> None:
        if operation == "renamed" and path.name.endswith(".replaced"):
            os.kill(os.getpid(), signal.SIGKILL)

    with _disk.intercepted(hook):
        child = os.fork()
        if not child:
            write(tmp_path / "out", "new", force=True)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    with (
        pytest.warns(LeftoverWarning, match=r"restored .*out from \.out\.\w+\.replaced"),
        pytest.warns(LeftoverWarning, match=r"removed .*\.out\.\w+\.unfinished \(3 bytes\)"),
        pytest.raises(ValueError, match="exists already"),
    ):
        write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "mark").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_temporary_names_of_living_processes_stay(tmp_path: Path) -> None:
    with fresh_directory(tmp_path / "out", is_ours) as directory, new_content(tmp_path / "file") as temporary:
        (directory / "mark").write_text("slow")
        temporary.write_text("slow")
        assert list(clean_tree(tmp_path)) == []
        write(tmp_path / "other", "quick")
        write_file(tmp_path / "file", "quick")
    assert (tmp_path / "out" / "mark").read_text() == "slow"
    assert (tmp_path / "file").read_text() == "slow"
    assert names(tmp_path) == ["file", "other", "out"]


def test_processes_that_share_a_directory_take_nothing_of_each_other(tmp_path: Path) -> None:
    """Creating, filling and deleting scratch directories at the same time, as many runs in /tmp do; no warning."""

    def work(number: int) -> None:
        for _ in range(60):
            with scratch_directory("work", tmp_path) as directory:
                for name in ("a", "b"):
                    (directory / name).write_text(str(number))
                assert (directory / "b").read_text() == str(number)

    with ThreadPoolExecutor(4) as pool:  # locks belong to open files, so that threads behave as processes do
        list(pool.map(work, range(4)))
    assert list(tmp_path.iterdir()) == []


def test_leftovers_are_removed_once_their_process_has_died(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        with (
            new_content(tmp_path / "file"),
            scratch_directory("work", tmp_path),
            fresh_directory(tmp_path / "out", is_ours),
        ):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(names(tmp_path)) == 3
    with pytest.warns(LeftoverWarning, match=r"removed .*\.file\.\w+\.tmp"):
        write_file(tmp_path / "file", "new")
    with pytest.warns(LeftoverWarning, match=r"removed .*\.work\.\w+\.unfinished"), scratch_directory("work", tmp_path):
        pass
    with pytest.warns(LeftoverWarning, match=r"removed .*\.out\.\w+\.unfinished"):
        write(tmp_path / "out", "new")
    assert names(tmp_path) == ["file", "out"]


@pytest.mark.parametrize("name", [".profile.tmp", ".cache.unfinished", "log.4fe2a90b.unfinished", ".a.4fe2a90.tmp"])
def test_files_of_others_stay(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert list(clean_tree(tmp_path)) == []
    assert names(tmp_path) == [name]


def test_append_leaves_no_half_line(tmp_path: Path) -> None:
    """A disk that is full after some bytes: the real limit of the size of files."""
    path = tmp_path / "lines"
    _disk.append(path, b"one\n")
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6, 6))
        try:
            _disk.append(path, b"two\n")
        except OSError as error:
            os._exit(error.errno or 0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EFBIG
    assert path.read_bytes() == b"one\n"


def test_links_are_replaced_atomically(tmp_path: Path) -> None:
    replace_link(tmp_path / "latest", "one")
    replace_link(tmp_path / "latest", "two")
    assert os.readlink(tmp_path / "latest") == "two"
    assert names(tmp_path) == ["latest"]


def test_symlink_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link", "new")
    assert (tmp_path / "real" / "mark").read_text() == "new"
    assert (tmp_path / "link").is_symlink()


def test_current_directory_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is the current directory, which cannot be replaced"):
        write(tmp_path.relative_to(tmp_path), "new")
    assert names(tmp_path) == []


# --- what is not a regular file -----------------------------------------------------------------------------------


def test_target_of_a_link_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("old")
    (tmp_path / "link").symlink_to("second")
    (tmp_path / "second").symlink_to("real/file")
    (tmp_path / "dangling").symlink_to("real/new")
    write_file(tmp_path / "link", "content")
    write_file(tmp_path / "dangling", "new content")
    assert os.readlink(tmp_path / "link") == "second"
    assert (tmp_path / "real" / "file").read_text() == "content"
    assert (tmp_path / "real" / "new").read_text() == "new content"
    assert names(tmp_path / "real") == ["file", "new"]


def test_link_to_itself_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(ValueError, match="link is a symbolic link that leads to itself"):
        write_file(tmp_path / "link", "content")


@pytest.mark.parametrize("linked", [False, True])
def test_pipe_is_written_and_stays(tmp_path: Path, linked: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with ThreadPoolExecutor(1) as thread:
        read = thread.submit((tmp_path / "pipe").read_bytes)
        write_file(tmp_path / ("link" if linked else "pipe"), "content" * 100_000)
        assert read.result() == b"content" * 100_000
    assert stat.S_ISFIFO(os.lstat(tmp_path / "pipe").st_mode)
    assert names(tmp_path) == ["link", "pipe"]


def test_device_is_written_and_stays(tmp_path: Path) -> None:
    """Nodes with the numbers of /dev/null and /dev/full: never the real ones, which an error would replace."""
    null, full = tmp_path / "null", tmp_path / "full"
    try:
        os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(full, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        null.write_bytes(b"")
    except PermissionError:
        pytest.skip("this user may not make devices here")
    write_file(null, "content")
    with pytest.raises(OSError, match="No space left"):
        write_file(full, "content")
    assert [os.lstat(node).st_rdev for node in (null, full)] == [os.makedev(1, 3), os.makedev(1, 7)]
    assert names(tmp_path) == ["full", "null"]


_TO_STANDARD_OUTPUT = """
import sys
from pathlib import Path
from rankfall.storage.files import write_file
print("before", flush=True)
write_file(Path(sys.argv[1]), "content\\n")
print("after")
"""


def test_standard_output_that_is_a_file_is_written_in_place(tmp_path: Path) -> None:
    """As in ``rankfall report RUN --out /dev/stdout >> all.html``: what the file has before and after stays.

    The link is a copy of /dev/stdout: never the real one, which an error would replace.
    """
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    command = [sys.executable, "-c", _TO_STANDARD_OUTPUT, str(tmp_path / "stdout")]
    (tmp_path / "all").write_text("first\n")
    with (tmp_path / "all").open("a") as output:
        subprocess.run(command, stdout=output, check=True)
    assert (tmp_path / "all").read_text() == "first\nbefore\ncontent\nafter\n"
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"before\ncontent\nafter\n"
    assert (tmp_path / "stdout").is_symlink()
