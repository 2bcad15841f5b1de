"""The HTTP service of bundles: ``rankfall serve BUNDLE``.

A request goes through `ranking` (read, checked, encoded), waits in `batching`, where one thread answers what is waiting
together, and goes back through `wire`. `slots` holds the bundles that answer, `follow` replaces them, by itself or for
`admin`, `board` tells other workers, and `information` says what there is. Nothing here needs torch.
"""
