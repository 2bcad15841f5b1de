"""Published tables and figures, one module each, run on whatever ranking lists or impressions are at hand.

A module has a function ``run(task) -> Report`` and the published figures as data beside it. `registry` lists them,
`datasets` finds lists and `planted` makes some, `logs` finds impressions or simulates them, `setup` and
`cascade_setup` say how the papers trained, `published`, `sweep` and `plots` show what came out.
"""
