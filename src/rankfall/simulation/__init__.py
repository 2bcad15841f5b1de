"""A simulated platform: its users, its items, the cascade that serves them, and the log of its requests.

The modules in the order of a request: ``presets`` (sizes and settings), ``world`` (users and items, candidates, true
relevance, reactions of users), ``platform`` (the cascade that served the log and its requests, day by day),
``simulate`` and ``industry_tables`` (the tables of served requests, and logs). ``live_users`` simulates users whose
requests another system answers.
"""
