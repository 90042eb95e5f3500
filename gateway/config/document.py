"""Text of a configuration file to data that remembers where each value stood.

Owns the YAML subset (that of YAML 1.2: only `true` and `false` are booleans, so `off` and `on` are text; no anchors,
tags or several documents) and the replacement of `${NAME}` and `${NAME:-default}` by environment variables. Knows no
setting by name. Lines and columns count from 1. A value from the environment is never quoted in a message.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import yaml

Loc = tuple[str | int, ...]
"""A path into the data: keys and indices."""

_REFERENCE = re.compile(r"\$\{([^{}\n]*)\}")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?")
# `{key: ${NAME}}` is not YAML: a brace ends a plain value there. So while YAML is parsed, the braces of a reference
# are two characters of the private use area.
_HIDDEN = re.compile("\\$\ue000(.*?)\ue001")
_BRACES = str.maketrans("\ue000\ue001", "{}")

_DEPTH_MAX = 20  # the settings need 8; deeper, the parser would end in a RecursionError

_ADVICE = (  # what PyYAML says, what is usually behind it
    (r"'\\t'", "there is a tab; indent with spaces, and put a value with a tab in quotes"),
    (
        "mapping values are not allowed",
        "there is a `:` too many; indent with care, and put a value with `: ` in quotes",
    ),
    ("could not find expected ':'", "there is a line without `:`; write `name: value`"),
    (
        "unexpected end of stream|<stream end>|expected ',' or ",
        "something is not closed before here: a quote, a [ or a {",
    ),
    ("expected <block end>", "the indentation does not fit the lines before; items of one list begin in one column"),
    (
        "cannot start any token|expected the node content",
        "a value cannot begin with this character unless it is in quotes",
    ),
    ("unknown escape", "a backslash means something in double quotes; use single quotes"),
    ("another document", "there is a second document (`---`); one file holds one configuration"),
    ("not allowed in plain|special characters", "there is a control character; remove it"),
)


class Position(NamedTuple):
    """Where a setting begins: its key, or for an item of a list the item."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Document:
    """A file as data.

    Attributes:
        data: mappings, lists, text, numbers and booleans; None for a file that is empty or not YAML.
        places: where each value stood.
        references: how a value was written that came from the environment.
        faults: what was found wrong so far, by path; a value at fault is in `data` as text that means nothing.
    """

    data: object = None
    places: Mapping[Loc, Position] = field(default_factory=dict)
    references: Mapping[Loc, str] = field(default_factory=dict)
    faults: Sequence[tuple[Loc, str]] = ()


class _Loader(yaml.SafeLoader):
    """Without the resolvers of YAML 1.1; those below are added."""


_Loader.yaml_implicit_resolvers = {}

_TAG = "tag:yaml.org,2002:"
for _tag, _pattern in (
    ("null", r"~|null|Null|NULL|"),
    ("bool", r"true|True|TRUE|false|False|FALSE"),
    ("int", r"[-+]?[0-9]{1,18}"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]{1,18}\.[0-9]*|[0-9]{1,18}(?=[eE]))([eE][-+]?[0-9]{1,3})?"),
):
    _Loader.add_implicit_resolver(_TAG + _tag, re.compile(f"^(?:{_pattern})$"), None)


def read_yaml(text: str, env: Mapping[str, str]) -> Document:
    """Parse a file; every problem becomes a fault of the document."""
    hidden = _REFERENCE.sub("$\ue000\\1\ue001", text)
    try:
        if unsupported := _unsupported(yaml.parse(hidden, _Loader)):
            return unsupported
        root = yaml.compose(hidden, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        return _not_yaml(error.problem, Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1))
    except yaml.reader.ReaderError as error:
        return _not_yaml(error.reason, Position(text.count("\n", 0, error.position) + 1, 1))
    if root is None:
        return Document()
    builder = _Builder(env)
    builder.places[()] = _place(root)
    return Document(builder.build(root, ()), builder.places, builder.references, builder.faults)


def _unsupported(events: Iterable[yaml.Event]) -> Document | None:
    """What is wrong with the first part of YAML that is not read here; None when all of it is."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        what = ""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            what = "an & or * at the start of a value needs quotes; anchors and aliases are not supported"
        elif getattr(event, "tag", None):
            what = "a ! at the start of a value needs quotes; tags are not supported (a variable is ${NAME})"
        elif depth > _DEPTH_MAX:
            what = "lists and mappings are nested too deeply"
        if what:
            mark = event.start_mark
            return _not_yaml(what, Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1))
    return None


def _not_yaml(problem: str | None, place: Position) -> Document:
    text = problem or "it cannot be read"
    advice = next((advice for pattern, advice in _ADVICE if re.search(pattern, text)), text)
    return Document(places={(): place}, faults=[((), f"this is not YAML as it is read here: {advice}")])


class _Builder:
    """Turns YAML nodes into data and notes where they stood."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.places: dict[Loc, Position] = {}
        self.references: dict[Loc, str] = {}
        self.faults: list[tuple[Loc, str]] = []

    def build(self, node: yaml.Node, loc: Loc) -> object:
        """The data of a node at a path."""
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc)
        if isinstance(node, yaml.SequenceNode):
            return self._list(node, loc)
        return self._scalar(node, loc)

    def _list(self, node: yaml.SequenceNode, loc: Loc) -> list[object]:
        data = []
        for index, item in enumerate(node.value):
            here = (*loc, index)
            self.places[here] = _place(item)
            data.append(self.build(item, here))
        return data

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, object]:
        data: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = key_node.value.translate(_BRACES) if isinstance(key_node, yaml.ScalarNode) else "?"
            here = (*loc, key)
            first = self.places.get(here)
            self.places[here] = _place(key_node)
            if first:
                self.faults.append((here, f"this is set twice, first in line {first.line}; remove one of the two"))
            else:
                data[key] = self.build(value_node, here)
        return data

    def _scalar(self, node: yaml.Node, loc: Loc) -> object:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "null":
                self.faults.append((loc, "nothing is written here; write a value or remove the line"))
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text)
            case "float":
                return float(text)
        if "${" in text:
            self.faults.append((loc, "there is a ${ that is not closed; the form is ${NAME} or ${NAME:-default}"))
        if _HIDDEN.search(text):
            self.references[loc] = text.translate(_BRACES)
        return _HIDDEN.sub(lambda match: self._variable(match[1], loc), text)

    def _variable(self, reference: str, loc: Loc) -> str:
        match = _VARIABLE.fullmatch(reference)
        if match is None:
            self.faults.append(
                (loc, "there is a ${...} that names no variable; the form is ${NAME} or ${NAME:-default}")
            )
            return "?"
        name, default = match.groups()
        value = self._env.get(name) or default
        if value is None:
            near = [] if name in self._env else difflib.get_close_matches(name, self._env, n=1, cutoff=0.8)
            state = "is empty" if name in self._env else "is not set"
            hint = f" (did you mean {near[0]}?)" if near else ""
            what = f"the environment variable {name} {state}{hint}; set it, or write ${{{name}:-default}}"
            self.faults.append((loc, what))
            return "?"
        return value


def _place(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)
