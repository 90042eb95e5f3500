"""The error of a source of replicas. No units."""


class SourceFailed(Exception):
    """A source has not answered; the text is the reason."""
