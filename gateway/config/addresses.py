"""The addresses on which a gateway listens by default; apart from settings.py, so that the parser loads no pydantic."""

from typing import Final

LISTEN_DEFAULT: Final = "127.0.0.1:8080"
ADMIN_LISTEN_DEFAULT: Final = "127.0.0.1:8081"
