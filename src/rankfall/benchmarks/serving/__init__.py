"""Benchmarks of the service: its overhead over the bare model calls, and its correctness under load and attack.

`load_generator` sends requests from a separate process, `answer_check` compares each answer with that of the bundle,
and `bare_calls` makes the same model calls without a service. `serve_bench`, `soak_bench` and `attack_bench` are the
benchmarks; `attacks` holds what the last one does to a service.
"""
