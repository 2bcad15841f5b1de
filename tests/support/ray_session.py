"""A small Ray session for a test module."""

from __future__ import annotations

import gc
import subprocess
import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rankfall._engine import import_ray, open_ray
from support import failing_work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankfall._engine import Ray


@contextmanager
def small_ray() -> Iterator[Ray]:
    """Yield Ray with two CPUs and little memory, and end all its processes afterwards."""
    pickle = import_ray().cloudpickle
    pickle.register_pickle_by_value(failing_work)  # workers cannot import helpers of tests
    with ExitStack() as stack:
        stack.callback(pickle.unregister_pickle_by_value, failing_work)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # Ray retries slow starts and leaves processes behind
            opened = stack.enter_context(open_ray(num_cpus=2, object_store_memory=100 * 2**20))
            gc.collect()
        yield opened
    for process in gc.get_objects():  # Ray does not wait for its processes, which Python warns of
        if issubclass(type(process), subprocess.Popen) and process.returncode is None and "/ray/" in str(process.args):
            process.kill()
            process.wait()
