"""Diagnosis of a cascade: where and why it loses relevant items, and what each cause is worth."""
