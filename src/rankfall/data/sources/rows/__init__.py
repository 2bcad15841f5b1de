"""Raw full-stage logs, one row per request and item, and their preparation as impression logs.

The modules in the order of the flow:

``row_files``      the files of a log, read in batches of rows
``columns``        the columns that the description needs, and the file or table each is read from
``column_types``   one type per column over all files
``raw_log``        files, origins and types together
``check_log``      every problem of a log, each row by itself (``row_checks``) and the rows of a request together
``request_order``  the requests in the order of writing, cut into portions
``portions``       the rows of a portion, spooled to disk (``row_spool``) and joined with the tables
``fit``            vocabularies, scalings, buckets and the item table
``log_sequences``  the events of a user before each request
``prepare_rows``   all steps, up to the written log; ``provenance`` describes them in its manifest
"""
