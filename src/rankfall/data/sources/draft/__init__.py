"""Drafts of descriptions and configurations from the columns of a log, for ``rankfall init``."""
