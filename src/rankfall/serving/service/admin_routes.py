"""``POST /reload``: another bundle, for those who have the token."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from rankfall.serving.service.bundle_slots import MAIN, SLOTS
from rankfall.serving.service.http_io import RefusedError, Reply, check_names, header, json_reply, parse
from rankfall.serving.value_checks import shown

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

    from rankfall.serving.service.bundle_reloader import Follower
    from rankfall.serving.service.http_io import Bodies

_log = logging.getLogger(__name__)


class Admin:
    """What only those with the token may do."""

    def __init__(self, token: str | None, follower: Follower, bodies: Bodies) -> None:
        self._token = token
        self._follower = follower
        self._bodies = bodies

    async def reload(self, scope: Scope, receive: Receive) -> Reply:
        """Put a bundle into a slot."""
        self._check_token(scope)
        content = parse(await self._bodies.read(scope, receive))
        check_names(content, ("path", "bundle"))
        path, slot = content.get("path"), content.get("bundle", MAIN)
        if not isinstance(path, str) or not path or "\0" in path:
            raise RefusedError(422, f"path: found {shown(path)}, expected the path of a bundle", "path")
        if slot not in SLOTS:
            raise RefusedError(422, f"bundle: found {shown(slot)}, expected {' or '.join(SLOTS)}", "bundle")
        try:
            model, before = await self._follower.reload(slot, Path(path))
        except (ValueError, OSError) as error:
            raise RefusedError(409, str(error), "path") from None
        return json_reply({"model": model, "before": before})

    def _check_token(self, scope: Scope) -> None:
        if self._token is None:
            how = "--token-file or the variable RANKFALL_TOKEN"
            raise RefusedError(403, f"authorization: nobody may do this, as the service was started without {how}")
        kind, _, given = (header(scope, b"authorization") or b"").partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token.encode()):
            address, _ = scope.get("client") or ("somebody", 0)
            _log.warning("/reload with %s token, from %s", "a wrong" if given else "no", address)
            raise RefusedError(
                401, "authorization: expected 'Bearer' and the token", headers=[(b"www-authenticate", b"Bearer")]
            )
