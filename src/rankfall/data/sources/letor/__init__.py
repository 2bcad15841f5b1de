"""Ranking text (LETOR, SVMlight) and its preparation as ranking data.

The modules in the order of the flow: ``text_files`` reads blocks of lines, ``parse`` parses them, ``split_reader``
collects the rows and lists of a split, ``letor_spool`` keeps the rows on disk, ``write_splits`` samples lists,
completes features and writes, ``prepare_letor`` runs all of it. ``recipe`` has the options.
"""
