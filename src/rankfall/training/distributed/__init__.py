"""Training by several processes: under torchrun, or started by Ray."""
