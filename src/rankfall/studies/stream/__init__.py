"""Training on one day after another, each measured before it is learned from."""
