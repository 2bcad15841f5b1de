"""Prepared LETOR lists: lists of documents with a dense feature vector and a label each."""
