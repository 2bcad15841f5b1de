"""The loop that trains a ranker, its configuration and its checkpoints.

This module imports nothing itself: a configuration can be read without waiting for torch.
"""
