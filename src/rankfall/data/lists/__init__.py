"""Prepared ranking data: ``ranking_data`` opens it, ``list_loader`` loads batches of whole lists."""
