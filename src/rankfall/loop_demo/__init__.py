"""``rankfall demo --loop``: a service, simulated users, a joiner and a trainer that learn from each other.

``loop_files`` has the files of a loop and what a new one begins with, ``http_users`` the client of the users,
``child_processes`` the commands that run beside them; ``run_loop`` runs days, and ``loop_report`` shows them.
"""
