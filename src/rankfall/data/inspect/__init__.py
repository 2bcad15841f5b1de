"""Figures of an impression log, and warnings about common mistakes.

:func:`inspect` reads a log once: ``impression_blocks`` reads it, ``counters`` and ``day_counter`` count, ``figures``
are the results, and ``checks`` derive warnings from them::

    figures = inspect(ImpressionLog.load("log"))
    for warning in figures.warnings:
        print(warning.message)
"""

from rankfall.data.inspect.inspect_log import inspect
from rankfall.data.inspect.inspection import Inspection

__all__ = ["Inspection", "inspect"]
