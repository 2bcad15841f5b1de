"""Measuring runs, and comparing methods."""
