"""Published tables and figures, reproduced on the data at hand.

``papers/`` has the published numbers and the settings of every reproduction as data, which `schema` defines and
`catalogue` loads. ``drivers/`` has the few programs that run them. `list_data` and `log_data` find, generate or
simulate the data; `protocols` turns what a paper states about training into configurations; `published_table` and
`published_sweep` compare our values with the published ones.
"""
