"""Figures of an impression log, and warnings about common mistakes.

:func:`inspect` reads a log once: ``inspection`` has the results and reads blocks, ``inspect_log`` counts,
and ``checks`` derive warnings from the figures::

    figures = inspect(ImpressionLog.load("log"))
    for warning in figures.warnings:
        print(warning.message)
"""

from rankfall.data.inspect.inspect_log import inspect
from rankfall.data.inspect.inspection import Inspection

__all__ = ["Inspection", "inspect"]
