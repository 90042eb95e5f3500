"""What ends a command of the bench with a sentence instead of a traceback. No units."""


class BenchError(Exception):
    """It cannot go on; the message says what was found, where, and what to do."""
