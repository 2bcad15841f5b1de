"""Published tables and figures, one module each, run on whatever ranking data are at hand.

A module has a function ``run(task) -> Report`` and the published figures as data beside it. `registry` lists them,
`datasets` finds the data, `planted` makes some, `tables` and `plots` show what came out.
"""
