"""Readers of raw data: full-stage rows, LETOR text, RecFlow, MovieLens and MQ2007."""
