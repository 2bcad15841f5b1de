"""Verbs of the command line, one file per verb. torch is imported inside functions, so that help pages are fast."""
