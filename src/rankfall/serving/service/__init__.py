"""The HTTP service for bundles: ``rankfall serve BUNDLE``.

The way of a request: `http_protocol` (connection limits) -> `middleware` (host check, metrics) -> `rank_routes`
(`http_io` reads the body, the bundle encodes it) -> `batching` (a queue, compute threads) -> a JSON response.

`app` assembles the components and routes of a worker, `run_service` starts one or several workers. `bundle_slots`
holds the bundles that are served, `bundle_reloader` replaces them, and `shared_state` keeps several workers in step.
`limits` lists every limit with its reason. Nothing in this package needs torch.
"""
