"""Attacks on a service of one's own, for ``rankfall bench attack``.

Each kind of attack is a module with small functions: one call of such a function is one attempt, which `attacker`
repeats in a process of its own. `attack_kinds` lists them all with the number of clients, the interval and the
responses that the service may return. An attempt only connects to 127.0.0.1 and is bounded in bytes and time.
"""
