"""``rankfall demo --loop``: a service, simulated users, a joiner and a trainer that learn from each other.

``loop_days`` has the files of a loop, what a new one begins with, and the client of the users; ``run_loop`` runs the
commands beside them, day after day, and shows them.
"""
