"""What a service costs beside the calls it is made of, and whether it stays right under load.

`load_generator` sends requests from a process of its own, `answer_check` compares each answer with that of the bundle,
and `bare_calls` makes the same calls without a service.
"""
