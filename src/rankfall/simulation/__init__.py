"""A platform that does not exist: its users, its items, the cascade that serves them, and the log of all that.

In the order of a request: :mod:`world` (users and items), :mod:`matching`, :mod:`relevance` (what is true),
:mod:`production` (what the cascade believes), :mod:`feedback`, :mod:`history`; :mod:`platform` lives the days. The log
becomes tables in :mod:`tables` and :mod:`industry` and is written by :mod:`simulate` and :mod:`recflow_layout`.
"""
