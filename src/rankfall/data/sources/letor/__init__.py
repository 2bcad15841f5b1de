"""Ranking text (LETOR, SVMlight) and its preparation as ranking data.

``parse`` reads files in blocks of lines and parses them; it has the options, too. ``prepare_letor`` collects the rows
and lists of a split, keeps the rows on disk, samples lists, completes features and writes.
"""
