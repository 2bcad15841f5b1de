"""Fixtures of the tests of the registry."""

from support.own_components import here as here
