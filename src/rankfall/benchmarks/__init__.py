"""Benchmarks of ``rankfall bench``: operators, losses, training steps, loading, sample building, scaling, serving.

:mod:`~rankfall.benchmarks.textbook` implements each method literally as in its paper,
:mod:`~rankfall.benchmarks.cases` pairs it with the library's function, and
:mod:`~rankfall.benchmarks.measure` measures time and memory. Each remaining module holds one benchmark.
"""
