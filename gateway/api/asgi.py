"""The ASGI types that this gateway uses. No units."""

from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]  # ASGI's own shape
Send = Callable[[Message], Coroutine[Any, Any, None]]
Receive = Callable[[], Coroutine[Any, Any, Message]]
Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
