"""Drivers of reproductions: each module has ``run(reproduction, task)``, for the model of its name in `schema`."""
