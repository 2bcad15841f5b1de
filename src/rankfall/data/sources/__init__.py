"""Readers of raw data: rows, LETOR text, RecFlow, MovieLens and MQ2007, one module or package per source."""
