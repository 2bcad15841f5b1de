"""Impression logs: their schema, their encoding, and batches of them."""
