"""What the library is measured against, and the measuring.

:mod:`~rankfall.benchmarks.textbook` holds each method as its paper prints it,
:mod:`~rankfall.benchmarks.cases` pairs it with the library's function,
:mod:`~rankfall.benchmarks.measure` takes time and memory.
"""
