"""Training of rankers and cascades: configurations, the loop, checkpoints and run directories.

The package imports nothing itself, so that a configuration can be read without importing torch.
"""
