"""Parses the text of a configuration file into data with the position of each value.

Owns the YAML subset (as in YAML 1.2, only `true` and `false` are booleans, so `off` and `on` are text; no anchors, tags
or several documents), the replacement of `${NAME}` and `${NAME:-default}` by environment variables, and the paths
of models and replicas in data that are not validated yet. Lines and columns count from 1. A value from the environment
is never quoted in a message.
"""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import yaml

Loc = tuple[str | int, ...]
"""Path into the data: keys and indices."""

Finding = tuple[Loc, str]
"""Path and message of a problem."""

RawMapping = dict[str, object]
"""A mapping of the file, not validated."""

_T = TypeVar("_T")


def entries(parent: RawMapping, loc: Loc, key: str) -> list[tuple[Loc, RawMapping]]:
    """Return the mappings in the list `parent[key]`, each with its path."""
    items = parent.get(key)
    found = enumerate(items) if isinstance(items, list) else ()
    return [((*loc, key, index), item) for index, item in found if isinstance(item, dict)]


def replicas(model: RawMapping, loc: Loc) -> list[tuple[Loc, RawMapping]]:
    """Return every replica of a model with its path, the replicas of its fallbacks last."""
    return [replica for pool_loc, pool in pools(model, loc) for replica in entries(pool, pool_loc, "replicas")]


def pools(model: RawMapping, loc: Loc) -> list[tuple[Loc, RawMapping]]:
    """Return every list of replicas of a model with its path: the model itself, then its fallbacks."""
    return [(loc, model), *entries(model, loc, "fallbacks")]


def templates(model: RawMapping, loc: Loc) -> list[tuple[Loc, RawMapping]]:
    """Return the settings of every source of a model's replicas with their path."""
    found = (((*pool_loc, "discover"), pool.get("discover")) for pool_loc, pool in pools(model, loc))
    return [(at, source) for at, source in found if isinstance(source, dict)]


def path(loc: Loc) -> str:
    """Format a path as `models[0].replicas[1].base_url`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


_REFERENCE = re.compile(r"\$\{([^{}\n]*)\}")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?")
# `{key: ${NAME}}` is not YAML: a brace ends a plain value there. The braces of a reference are therefore replaced with
# two characters of the private use area while YAML is parsed.
_HIDDEN = re.compile("\\$\ue000(.*?)\ue001")
_BRACES = str.maketrans("\ue000\ue001", "{}")

_INDENTS = re.compile("^[ ?:-]*", re.MULTILINE)
_DEPTH_MAX = 20  # the settings need 8; much deeper nesting would raise a RecursionError in the parser

_ADVICE = (  # pattern of PyYAML's message -> usual cause and correction
    (r"'\\t'", "there is a tab; indent with spaces, and quote values that contain a tab"),
    (
        "mapping values are not allowed",
        "there is an unexpected `:`; check the indentation, and quote values that contain `: `",
    ),
    ("could not find expected ':'", "a line has no `:`; write `name: value`"),
    (
        "unexpected end of stream|<stream end>|expected ',' or ",
        "a quote, [ or { before this position is not closed, or a comma is missing; add it",
    ),
    ("expected <block end>", "the indentation does not match the lines before; align list items in one column"),
    (
        "cannot start any token|expected the node content",
        "a value cannot start with this character; quote the value",
    ),
    ("unknown escape", "a backslash starts an escape sequence in double quotes; use single quotes"),
    ("another document", "there is a second document (`---`); write one configuration per file"),
    ("not allowed in plain|special characters", "there is a control character; remove it"),
)


class Position(NamedTuple):
    """Start of a setting: of its key, or of the item in a list."""

    line: int
    column: int


class Document(msgspec.Struct, frozen=True):
    """A file as data.

    Attributes:
        data: mappings, lists, text, numbers and booleans; None for a file that is empty or not YAML.
        positions: position of each value, by path.
        references: original text of each value that contained a variable, by path.
        faults: path and message of each problem found so far; a faulty value is in `data` as meaningless text.
    """

    data: object = None
    positions: dict[Loc, Position] = msgspec.field(default_factory=dict)
    references: Mapping[Loc, str] = msgspec.field(default_factory=dict)
    faults: Sequence[tuple[Loc, str]] = ()

    def free(self) -> None:
        """Remove the positions and the items of lists one by one, after their last use.

        Freeing all of a large file at once would hold the interpreter's lock for long.
        """
        while self.positions:
            self.positions.popitem()
        for items in self.data.values() if isinstance(self.data, dict) else ():
            while isinstance(items, list) and items:
                items.pop()


class _Loader(yaml.SafeLoader):
    """Loader with the resolvers below instead of the resolvers of YAML 1.1."""


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the base is a value
    """The same in C, twenty times as fast, with other messages for errors; PyYAML may be built without it."""


_Loader.yaml_implicit_resolvers = {}
_FastLoader.yaml_implicit_resolvers = {}

_TAG = "tag:yaml.org,2002:"
for _tag, _pattern in (
    ("null", r"~|null|Null|NULL|"),
    ("bool", r"true|True|TRUE|false|False|FALSE"),
    ("int", r"[-+]?[0-9]{1,18}"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]{1,18}\.[0-9]*|[0-9]{1,18}(?=[eE]))([eE][-+]?[0-9]{1,3})?"),
):
    for _loader in (_Loader, _FastLoader):
        _loader.add_implicit_resolver(_TAG + _tag, re.compile(f"^(?:{_pattern})$"), None)


def read_yaml(text: str, env: Mapping[str, str]) -> Document:
    """Parse a file; each problem is added to the faults of the document."""
    hidden = _REFERENCE.sub("$\ue000\\1\ue001", text)
    try:
        root = _composed(hidden)
        if isinstance(root, Document):
            return root
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        return _not_yaml(error.problem, Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1))
    except yaml.reader.ReaderError as error:
        return _not_yaml(error.reason, Position(text.count("\n", 0, error.position) + 1, 1))
    if root is None:
        return Document()
    builder = _Builder(env)
    builder.positions[()] = _position(root)
    return Document(builder.build(root, ()), builder.positions, builder.references, builder.faults)


def _composed(text: str) -> yaml.Node | Document | None:
    """Return the root of a text; None if it is empty, a document with a fault if it uses unsupported YAML.

    Raises:
        YAMLError: it is not YAML.
    """
    if "\t" not in text:  # which the fast one accepts within plain values
        with contextlib.suppress(yaml.YAMLError):  # the other loader describes it
            return _with(_FastLoader, text)
    return _with(_Loader, text)


def _with(loader: type[yaml.SafeLoader], text: str) -> yaml.Node | Document | None:
    if _is_plain(text):
        return yaml.compose(text, loader)
    return _unsupported(yaml.parse(text, loader)) or yaml.compose(text, loader)


def _is_plain(text: str) -> bool:
    """Return True if a text has no sign of unsupported YAML; reading all events for that takes as long as parsing.

    Each column before a value is at most two levels: a list may be as far to the left as the key above it.
    """
    levels = text.count("[") + text.count("{") + 2 * max(map(len, _INDENTS.findall(text)), default=0)
    return levels <= _DEPTH_MAX and not any(sign in text for sign in "&*!")


def _unsupported(events: Iterable[yaml.Event]) -> Document | None:
    """Return a document with the first use of unsupported YAML as its fault; None if all is supported."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        what = ""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            what = "anchors and aliases are not supported; quote values that start with & or *"
        elif getattr(event, "tag", None):
            what = "tags are not supported; quote values that start with !, and write variables as ${NAME}"
        elif depth > _DEPTH_MAX:
            what = f"lists and mappings are nested too deeply; use at most {_DEPTH_MAX} levels"
        if what:
            mark = event.start_mark
            position = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
            return Document(positions={(): position}, faults=[((), what)])
    return None


def _not_yaml(problem: str | None, position: Position) -> Document:
    text = problem or "the text cannot be parsed"
    advice = next((advice for pattern, advice in _ADVICE if re.search(pattern, text)), text)
    return Document(positions={(): position}, faults=[((), f"the file is not valid YAML: {advice}")])


class _Builder:
    """Turns YAML nodes into data, and records their positions.

    Uses the nodes up: freeing all of a large file at once would hold the interpreter's lock for long.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.positions: dict[Loc, Position] = {}
        self.references: dict[Loc, str] = {}
        self.faults: list[tuple[Loc, str]] = []

    def build(self, node: yaml.Node, loc: Loc) -> object:
        """Return the data of a node at a path."""
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc)
        if isinstance(node, yaml.SequenceNode):
            return self._list(node, loc)
        return self._scalar(node, loc)

    def _list(self, node: yaml.SequenceNode, loc: Loc) -> list[object]:
        data = []
        for index, item in enumerate(_used_up(node.value)):
            here = (*loc, index)
            self.positions[here] = _position(item)
            data.append(self.build(item, here))
        return data

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, object]:
        data: dict[str, object] = {}
        for key_node, value_node in _used_up(node.value):
            key = key_node.value.translate(_BRACES) if isinstance(key_node, yaml.ScalarNode) else "?"
            here = (*loc, key)
            first = self.positions.get(here)
            self.positions[here] = _position(key_node)
            if first:
                self.faults.append((here, f"this setting is already set in line {first.line}; remove one of the two"))
            else:
                data[key] = self.build(value_node, here)
        return data

    def _scalar(self, node: yaml.Node, loc: Loc) -> object:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "null":
                self.faults.append((loc, "the value is missing; write a value, or remove the line"))
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text)
            case "float":
                return float(text)
        if "${" in text:
            self.faults.append((loc, "a ${ is not closed; write ${NAME} or ${NAME:-default}"))
        if _HIDDEN.search(text):
            self.references[loc] = text.translate(_BRACES)
        return _HIDDEN.sub(lambda match: self._variable(match[1], loc), text)

    def _variable(self, reference: str, loc: Loc) -> str:
        match = _VARIABLE.fullmatch(reference)
        if match is None:
            self.faults.append((loc, "a ${...} contains no valid name; write ${NAME} or ${NAME:-default}"))
            return "?"
        name, default = match.groups()
        value = self._env.get(name) or default
        if value is None:
            near = [] if name in self._env else difflib.get_close_matches(name, self._env, n=1, cutoff=0.8)
            state = "is empty" if name in self._env else "is not set"
            hint = f" (did you mean {near[0]}?)" if near else ""
            message = f"the environment variable {name} {state}{hint}; set it, or write ${{{name}:-default}}"
            self.faults.append((loc, message))
            return "?"
        return value


def _used_up(items: list[_T]) -> Iterator[_T]:
    """Yield the items of a list from the first to the last, and remove each."""
    items.reverse()
    while items:
        yield items.pop()


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)
