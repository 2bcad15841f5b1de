"""Configurations of training runs: one YAML file, validated before any data are read or written."""
