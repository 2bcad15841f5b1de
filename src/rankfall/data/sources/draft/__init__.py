"""Drafts of specs and configurations from the columns of a log, for ``rankfall init``."""
