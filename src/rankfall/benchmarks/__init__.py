"""Benchmarks of ``rankfall bench``: operators, losses, loading, training steps and the service.

:mod:`~rankfall.benchmarks.timing` measures time and memory; each other module holds one benchmark. Studies that compare
the library with textbook code, trials of the service and further benchmarks are in `benchmarks/` and `tests/trials/` of
the repository.
"""
