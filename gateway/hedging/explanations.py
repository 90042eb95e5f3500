"""Explains decisions on hedges, with their numbers, for the log. Pure. Units: seconds in arguments."""


def why_hedged(late_replica: str, waited_s: float, predicted_s: float | None, gain_s: float | None) -> str:
    """Explain a hedge; None for a prediction or a gain that does not exist."""
    text = f"{late_replica} had no token after {1000 * waited_s:.0f} ms"
    if predicted_s is not None:
        text += f", {1000 * predicted_s:.0f} ms expected here"
    if gain_s is not None:
        text += f", saving {1000 * gain_s:.0f} ms"
    return text


def why_low_gain(replica: str, gain_s: float, required_s: float) -> str:
    """Explain a denial for a gain that is too small."""
    return f"a backup on {replica} would save {1000 * gain_s:.0f} ms ({1000 * required_s:.0f} ms needed)"


def why_no_quota(replica: str, left_share: float) -> str:
    """Explain a denial for a quota that is reserved for primaries."""
    return f"{left_share:.0%} of the quota of {replica} is left and reserved for primaries"
