"""Load and kill trials of the loop: a service that records, a joiner, and a trainer whose bundles the service loads."""
