"""The phase of a stream, from the bytes of its last generated event: thinking, a tool call, or text. Pure.

A model that thinks or writes a tool call is silent for longer than one that writes text, so each phase has a timeout of
its own. A tool that the provider runs counts as thinking. The phase is read when a timeout may be over, not for every
event: the markers are JSON keys and types of the client APIs, whose quotes are escaped inside a text, so no text of an
answer contains one.
"""

import enum
import re
from typing import Final

from gateway.race.context import Timeouts


class Phase(enum.Enum):
    """Kind of output of the last generated event; the value is the word in errors."""

    TEXT = "text"
    THINKING = "reasoning"
    TOOL_CALL = "tool call"


_find_thinking: Final = re.compile(
    rb'"(?:reasoning_content|reasoning|thinking)": ?"[^"]'  # chat completions, of many servers
    rb'|"(?:reasoning_details|thinking_blocks)": ?\[ ?\{'
    rb'|"type": ?"(?:thinking|thinking_delta|redacted_thinking|signature_delta)"'  # Messages
    rb'|"type": ?"(?:response\.reasoning[a-z_.]*|reasoning)"'  # Responses: an event, or the start of an item
    rb'|"type": ?"(?:response\.)?(?:web_search|file_search|code_interpreter|image_generation|mcp)_call[a-z_.]*"'
).search
_find_tool_call: Final = re.compile(
    rb'"tool_calls": ?\[ ?\{|"function_call": ?\{'
    rb'|"type": ?"(?:input_json_delta|tool_use)"'
    rb'|"type": ?"(?:function_call|custom_tool_call)"'
    rb'|"type": ?"response\.(?:function_call_arguments|custom_tool_call_input)[a-z_.]*"'
).search


def phase_of(event: bytes) -> Phase | None:
    """Return the phase that an event begins or continues; None for text, pings and empty events."""
    last = last_event(event)
    if _find_tool_call(last):
        return Phase.TOOL_CALL
    return Phase.THINKING if _find_thinking(last) else None


def last_event(events: bytes) -> bytes:
    """Return the last of several events, perhaps after a line end of the one before."""
    return events[events.rfind(b"\n\n", 0, -2) + 1 :]


def silence_s_max(phase: Phase, timeouts: Timeouts) -> float:
    """Return the longest silence of a phase, which is never shorter than that of text."""
    if phase is Phase.TEXT:
        return timeouts.stall_s
    return max(timeouts.stall_s, timeouts.stall_thinking_s if phase is Phase.THINKING else timeouts.stall_tool_call_s)
