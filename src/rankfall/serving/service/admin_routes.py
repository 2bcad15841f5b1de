"""``POST /reload``: replace a bundle, for clients with the token."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from rankfall.serving.service import limits
from rankfall.serving.service.bundle_slots import MAIN, SLOTS
from rankfall.serving.service.http_io import ApiError, JsonResponse, check_keys, invalid_value
from rankfall.serving.service.json_bodies import parse_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from rankfall.serving.service.bundle_reloader import BundleReloader
    from rankfall.serving.service.http_io import BodyReader

_log = logging.getLogger(__name__)


class AdminRoutes:
    """Endpoints that require the token.

    Args:
        token: The expected token; None disables the endpoints.
        reloader: Loads the bundles.
        bodies: Reads the request bodies.
    """

    def __init__(self, token: str | None, reloader: BundleReloader, bodies: BodyReader) -> None:
        self._token = token
        self._reloader = reloader
        self._bodies = bodies

    async def reload(self, request: Request) -> Response:
        """Load a bundle into a slot."""
        self._check_token(request)
        body = await self._bodies.read(request)
        if len(body) > limits.LARGE_BODY_BYTES:
            message = f"body: found {len(body):,} bytes, expected at most {limits.LARGE_BODY_BYTES:,}"
            raise ApiError(413, message, reason="large body")
        content = parse_json(body, max_names=limits.max_names(limits.LARGE_BODY_BYTES))
        check_keys(content, ("path", "bundle"))
        path, slot = content.get("path"), content.get("bundle", MAIN)
        if not isinstance(path, str) or not path or "\0" in path:
            raise invalid_value("path", path, "the path of a bundle")
        if slot not in SLOTS:
            raise invalid_value("bundle", slot, " or ".join(SLOTS))
        try:
            model, before = await self._reloader.reload(slot, Path(path))
        except (ValueError, OSError) as error:
            raise ApiError(409, str(error), "path") from None
        return JsonResponse({"model": model, "before": before})

    def _check_token(self, request: Request) -> None:
        if self._token is None:
            options = "--token-file and without the variable RANKFALL_TOKEN"
            raise ApiError(403, f"authorization: reloading is disabled, the service was started without {options}")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # bytes, because compare_digest takes no text beyond ASCII
        is_valid = hmac.compare_digest(token.strip().encode("latin-1"), self._token.encode())
        if scheme.lower() != "bearer" or not is_valid:
            address = "an unknown address" if request.client is None else request.client.host
            _log.warning("/reload with %s token from %s", "a wrong" if token else "no", address)
            message = "authorization: expected 'Bearer' and the token"
            raise ApiError(401, message, headers={"www-authenticate": "Bearer"})
