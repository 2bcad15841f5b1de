"""Streams: methods are trained on one day after another; each day is measured before it is trained on.

``stream_config`` reads the configuration and plans the runs, ``day_ledger`` fixes the days and their order,
``day_learner`` trains a run day by day, ``run_stream`` runs all of it, ``stream_summary`` summarises the values.
"""
