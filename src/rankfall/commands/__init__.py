"""Verbs of the command line, one module or package per verb.

Verbs share `options` (flags and arguments), `terminal` (output) and `write_figures`; `stream_bundles` belongs to
`stream`. torch is imported inside functions, so that help pages are fast.
"""
