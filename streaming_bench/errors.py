"""Errors that end a command of the bench with a message instead of a traceback. No units."""


class BenchError(Exception):
    """A command cannot continue; the message names the cause, the place and the remedy."""
