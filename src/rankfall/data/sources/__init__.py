"""Readers of raw data: rows, LETOR text and RecFlow, one module or package per source."""
