"""What an impression log holds, and what looks wrong in it.

:func:`inspect` reads a log once and counts (``count``); the ``checks`` look at the figures::

    figures = inspect(ImpressionLog.load("log"))
    for warning in figures.warnings:
        print(warning.message)
"""

from rankfall.data.inspect.figures import Inspection
from rankfall.data.inspect.inspect_log import inspect

__all__ = ["Inspection", "inspect"]
