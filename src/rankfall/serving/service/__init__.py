"""The HTTP service for bundles: ``rankfall serve BUNDLE``.

The way of a request: `http_protocol` (connection limits) -> `app` (host check, metrics) -> `routes` (`http_io` reads
the body, the bundle encodes it) -> `batching` (a queue, compute threads) -> a JSON response.

`app` assembles the components of a worker, `run_service` starts one or several workers. `bundle_slots` holds the
bundles that are served, replaces them, and keeps several workers in step. `settings` lists every limit with its
reason. Nothing in this package needs torch.
"""
