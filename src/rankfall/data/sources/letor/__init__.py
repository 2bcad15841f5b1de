"""Ranking text (LETOR, SVMlight) and its way into prepared ranking data."""
