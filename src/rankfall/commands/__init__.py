"""The verbs of the command line, made from the functions of :mod:`rankfall.api` by :mod:`rankfall.commands.verb`."""
