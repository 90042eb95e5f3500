"""The error of a request body that does not fit its API."""


class InvalidRequest(Exception):
    """The body of a request cannot be read, or is not valid in its API.

    Args:
        message: `<what> is <state>; <action>`.
        param: request field that caused the error; None if no field did.
        code: code of the error in OpenAI's API; None if it has none.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
