"""Impression logs: how they are described, assembled, written and loaded.

The modules in the order of the flow:

``spec``         the YAML spec of a log, and the features that a model receives
``encoding``     values to embedding ids and numbers; ``hashing`` hashes them
``requests``     the keys and the order of requests, and the rows of each of them
``stage_depth``  the deepest stage of each item; ``sampler`` samples and grades items, ``history`` collects past events
``schema``       the files and columns of a log; ``items`` builds its item table
``assemble``     rows to impressions; ``counts`` counts what was read and kept
``log_writer``   writes a log, ``log`` opens it, ``append`` adds days, ``log_watcher`` waits for them
``compatibility`` checks that a model can read a log
``loader``       batches of tensors
"""
