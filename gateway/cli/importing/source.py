"""Reads a foreign YAML file into data with the line of each value.

Unlike gateway/config/document.py, it reads all of YAML 1.1: anchors, merge keys, empty values. Dates are text. Depth
and number of values are bounded, because aliases can repeat values without limit. Lines count from 1.
"""

from collections.abc import Mapping

import msgspec
import yaml

from gateway.config.document import Loc

_DEPTH_MAX = 30
_VALUES_MAX = 100_000
_TYPED = frozenset({"null", "bool", "int", "float"})


class NotReadable(Exception):
    """A file is not usable YAML.

    Attributes:
        line: line of the problem.
        text: problem and correction.
    """

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


class ForeignFile(msgspec.Struct, frozen=True):
    """A file as data.

    Attributes:
        data: mappings with text keys, lists, text, numbers, booleans and None.
        lines: line of each value, by path; in a mapping, the line of the key.
    """

    data: object
    lines: Mapping[Loc, int]

    def line(self, loc: Loc) -> int:
        """Return the line of a value, or of the nearest value around it."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 1)


def read_source(text: str) -> ForeignFile:
    """Parse a file.

    Raises:
        NotReadable: it is not YAML, has several documents, or is nested too deeply.
    """
    loader = yaml.SafeLoader("")
    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEPTH_MAX:
                raise _too_deep(event.start_mark.line if event.start_mark else 0)
        root = yaml.compose(text, yaml.SafeLoader)
        builder = _Builder(loader)
        return ForeignFile(None if root is None else builder.build(root, ()), builder.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise NotReadable(mark.line + 1 if mark else 1, f"the file is not valid YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise NotReadable(line, "the file contains a control character; remove it") from None
    finally:
        loader.dispose()


def _too_deep(line: int) -> NotReadable:
    return NotReadable(line + 1, f"the file is nested too deeply; use at most {_DEPTH_MAX} levels and no loops")


class _Builder:
    """Turns YAML nodes into data, and records their lines."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader = loader
        self._values = 0
        self.lines: dict[Loc, int] = {}

    def build(self, node: yaml.Node, loc: Loc) -> object:
        """Return the data of a node at a path."""
        self._values += 1
        if len(loc) > _DEPTH_MAX:
            raise _too_deep(node.start_mark.line)
        if self._values > _VALUES_MAX:
            raise NotReadable(node.start_mark.line + 1, f"the file has more than {_VALUES_MAX:,} values; shorten it")
        self.lines.setdefault(loc, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            self._loader.flatten_mapping(node)  # merge keys
            data: dict[str, object] = {}
            for key_node, value_node in node.value:
                key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
                self.lines[(*loc, key)] = key_node.start_mark.line + 1
                data[key] = self.build(value_node, (*loc, key))
            return data
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*loc, index)) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> object:
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _TYPED:
            return str(node.value)
        try:
            value: object = self._loader.construct_object(node)
        except (ValueError, KeyError):  # such as `!!int x`
            return str(node.value)
        return value
