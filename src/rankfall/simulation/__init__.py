"""A simulated platform: its users, its items, the cascade that serves them, and the log of its requests.

The modules in the order of a request: ``presets`` (sizes and settings), ``world`` (users and items), ``matching``
(candidates), ``relevance`` (the true relevance), ``production`` (the scores and stages of the cascade that served the
log), ``feedback`` (reactions of users) and ``recent_events`` (their last views); ``platform`` runs them day by day.
``recflow_tables`` and ``industry_tables`` convert served requests to tables, which ``simulate`` and ``recflow_layout``
write. ``live_users`` simulates users whose requests another system answers, and ``loop_tables`` makes tables, request
bodies and events of them.
"""
