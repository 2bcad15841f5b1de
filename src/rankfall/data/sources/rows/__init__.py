"""Raw full-stage logs, one row per request and item, and their preparation as impression logs.

The modules in the order of the flow:

``row_files``      the files of a log, read in batches of rows, and the types of their columns
``stored_rows``    rows that are no local files: objects in storage, Delta tables, functions that yield tables
``raw_log``        the columns that the spec needs, where each is read from, and one type for each
``check_log``      every problem of a log, each row by itself and the rows of a request together
``portions``       the requests in the order of writing, and their rows in portions, joined with the tables
``log_state``      what is fitted to a log, and what the next day depends on
``write_days``     the impressions of day after day, and the provenance for the manifest
``prepare_rows``   all steps, up to the written log, and again for days that are appended
"""
