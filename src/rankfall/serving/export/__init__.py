"""Export of the checkpoint of a run as a bundle. Exporting needs torch; bundles do not."""
