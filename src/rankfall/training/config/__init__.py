"""Configurations of training runs: one YAML file, validated before anything is read or written."""
