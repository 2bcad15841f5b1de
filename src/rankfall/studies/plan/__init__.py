"""Planning quotas: the joint recall and the cost of a cascade for all quotas of a grid, and the best of them."""
