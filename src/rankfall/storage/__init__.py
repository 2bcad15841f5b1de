"""Files that survive crashes and show damage: atomic writes, manifests with checksums, and trust in stored code."""
