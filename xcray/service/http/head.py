"""HEAD for every GET route: the same status and headers, without the body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMiddleware:
    """Answer HEAD as GET, and drop the body.

    After its first part, a route that streams receives the message that the client has left.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        ended = False

        async def receive_until_end() -> Message:
            return {"type": "http.disconnect"} if ended else await receive()

        async def send_head(message: Message) -> None:
            nonlocal ended
            # the server allows a Content-Length without a body for this method only
            scope["method"] = "HEAD"
            if message["type"] != "http.response.body":
                await send(message)
            elif not ended:
                ended = True
                await send({"type": "http.response.body", "body": b""})

        scope["method"] = "GET"  # in place, because outer middleware reads the route from the scope
        await self._app(scope, receive_until_end, send_head)
