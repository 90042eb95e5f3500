"""Reading YAML with places, and replacing `${NAME}`: what is text, what is replaced, and that nothing makes it fail."""

import contextlib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import document as document_module
from gateway.config.document import Position, read_yaml


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("'true'", "true"),
        ("15", 15),
        ("-3", -3),
        ("0.9", 0.9),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1:30", "1:30"),
        ("2024-08-06", "2024-08-06"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        (".nan", ".nan"),
        ("999999999999999999999", "999999999999999999999"),
        ("=", "="),
        ("[a, 1]", ["a", 1]),
        ("{b: 2}", {"b": 2}),
        ("|\n  text\n", "text\n"),
    ],
    ids=repr,
)
def test_plain_values_are_those_of_yaml_1_2(written: str, value: object) -> None:
    """Only true and false are booleans, only decimal numbers are numbers; times, dates, on and off are text."""
    document = read_yaml(f"x: {written}", {})
    assert (document.data, list(document.faults)) == ({"x": value}, [])


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${A}", "1"),
        ("'${A}'", "1"),
        ('"${A}"', "1"),
        ("x${A}y${B}", "x1y: #{}'"),
        ("${B}", ": #{}'"),
        ("${NONE:-default}", "default"),
        ("${NONE:-http://h:1/v1}", "http://h:1/v1"),
        ("${NONE:-}", ""),
        ("${EMPTY:-default}", "default"),
        ("${C}", "${A}"),
        ("$A", "$A"),
        ("{A}", {"A": None}),
    ],
    ids=repr,
)
def test_variables_are_replaced_in_values(written: str, value: object) -> None:
    """A reference becomes the variable's text, which is never read as YAML or as a reference again."""
    env = {"A": "1", "B": ": #{}'", "C": "${A}", "EMPTY": ""}
    assert read_yaml(f"x: {written}", env).data == {"x": value}


def test_a_variable_may_stand_unquoted_between_braces() -> None:
    """`{key: ${NAME}}` is read as people mean it, although a brace ends a plain value in YAML."""
    document = read_yaml("keys: [{name: a, key: ${KEY}}, {name: b, key: ${NONE:-d}}]", {"KEY": "k"})
    assert document.data == {"keys": [{"name": "a", "key": "k"}, {"name": "b", "key": "d"}]}


def test_a_variable_in_a_comment_need_not_be_set() -> None:
    """Variables in comments are ignored."""
    document = read_yaml("x: 1 # ${NONE}\n# y: ${NONE}", {})
    assert (document.data, list(document.faults)) == ({"x": 1}, [])


def test_places_are_those_of_keys_and_items() -> None:
    """A setting has the position of its key, and an item its own, also after references."""
    document = read_yaml("# first\na:\n  - {b: ${A}, c: 2}\n  - d\n", {"A": "a long text"})
    assert document.positions == {
        (): Position(2, 1),
        ("a",): Position(2, 1),
        ("a", 0): Position(3, 5),
        ("a", 0, "b"): Position(3, 6),
        ("a", 0, "c"): Position(3, 15),
        ("a", 1): Position(4, 5),
    }
    assert document.references == {("a", 0, "b"): "${A}"}


def test_only_the_first_of_two_equal_keys_is_read() -> None:
    """A key that is set twice is a fault at the second place and keeps its first value."""
    document = read_yaml("a: 1\nb: 2\na: 3\n", {})
    assert document.data == {"a": 1, "b": 2}
    assert document.positions[("a",)] == Position(3, 1)
    assert document.faults == [(("a",), "this setting is already set in line 1; remove one of the two")]


def test_an_empty_file_is_no_data() -> None:
    """A file with comments only has no data and no fault of its own."""
    assert read_yaml("# nothing\n", {}).data is None
    assert not read_yaml("# nothing\n", {}).faults


@settings(max_examples=200)
@given(st.text(st.sampled_from("ab1-:{}[]&*!|>'\"%@`#$\t\n ,?\\~.\x00\ue000\ue001é"), max_size=40))
def test_no_text_makes_reading_raise(text: str) -> None:
    """Any text results in data or a fault."""
    document = read_yaml(text, {"a": "b"})
    assert (
        document.data is not None or document.faults or not text.strip() or text.lstrip().startswith(("#", "%", "---"))
    )


@settings(max_examples=300)
@given(st.text(st.sampled_from("ab1-:{}[]&*!|>'\"%@`#$\t\n ,?\\~.\ue000\ue001é"), max_size=60))
def test_both_parsers_read_the_same(text: str) -> None:
    """The parser in C returns the data and positions of the one in Python, if that finds no fault."""
    fast = read_yaml(text, {"a": "b"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_module, "_FastLoader", document_module._Loader)
        slow = read_yaml(text, {"a": "b"})
    assert slow.faults or slow == fast


_ROWS = [
    "[" * 50,
    "- " * 21 + "x",
    "? " * 21 + "x",
    "".join(f"{' ' * level}a:\n" for level in range(21)),
    "".join(f"{' ' * level}a:\n{' ' * level}-\n" for level in range(11)) + " " * 11 + "a: x",
    "a:\n" + "".join(f"{' ' * 4 * level}- - a:\n" for level in range(7)) + " " * 28 + "- x",
    "[{a: [{a: [{a: [{a: [{a: [{a: [{a: [{a: [{a: [{a: [x]}]}]}]}]}]}]}]}]}]}]",
]


@pytest.mark.parametrize("text", _ROWS, ids=["open", "lists", "keys", "mappings", "both", "in turns", "flow"])
def test_deep_nesting_is_a_fault(text: str) -> None:
    """A file nested beyond what can be parsed is refused instead of ending the process."""
    [(_, fault)] = read_yaml(text, {}).faults
    assert fault == "lists and mappings are nested too deeply; use at most 20 levels" or text == "[" * 50


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["a", ":", " ", "  ", "-", "- ", "? ", "\n", "[", "]", "{", "}", ","])).map("".join))
def test_a_plain_text_is_read_without_a_look_at_its_events(text: str) -> None:
    """No text without a sign of unsupported YAML is nested too deeply."""
    if document_module._is_plain(text):
        with contextlib.suppress(yaml.YAMLError):
            assert document_module._unsupported(yaml.parse(text, document_module._Loader)) is None
