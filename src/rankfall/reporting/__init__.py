"""Results as tables, charts and pages. Nothing above this package knows how a result is drawn."""
