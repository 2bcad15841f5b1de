"""From the checkpoint of a run to a bundle. This half of serving needs torch; bundles do not."""
