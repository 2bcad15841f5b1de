"""What a service costs beside the calls it is made of, and whether it stays right under load.

:mod:`~rankfall.benchmarks.serving.load` asks, in a process of its own, :mod:`~rankfall.benchmarks.serving.answers`
says whether an answer is that of the bundle, and :mod:`~rankfall.benchmarks.serving.bare` makes the same calls without
a service.
"""
