"""Published tables and figures, reproduced on the data at hand.

``papers/`` has the published numbers and the settings of every reproduction as data, which `paper_schema` defines and
`catalogue` loads. `comparisons`, `transfers`, `costs`, `operator_properties` and `statistics` run them. `data` finds,
generates or simulates the data; `protocols` turns what a paper states about training into configurations; `published`
compares our values with the published ones.
"""
