"""Names of the tools in a group (`type: namespace`) for an API without groups: `GROUP__NAME`. Pure."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ttft_gateway.apis.json_fields import dict_or_empty, list_or_empty

Item = Mapping[str, object]


class GroupedTool(NamedTuple):
    """A tool of a request.

    Attributes:
        param: its place in the request.
        group: name of its group; None for a tool outside of any group.
        tool: the tool itself.
    """

    param: str
    group: str | None
    tool: Item


def tools_of(tools: object) -> Iterator[GroupedTool]:
    """Yield the tools of a request, the tools in groups included."""
    for index, each in enumerate(list_or_empty(tools)):
        tool = dict_or_empty(each)
        if tool.get("type") != "namespace":
            yield GroupedTool(f"tools[{index}]", None, tool)
            continue
        for number, inner in enumerate(list_or_empty(tool.get("tools"))):
            yield GroupedTool(f"tools[{index}].tools[{number}]", str(tool.get("name")), dict_or_empty(inner))


def joined(group: object, name: object) -> object:
    """Return the name of a tool with the name of its group, if any; MCP groups end with the separator already."""
    if not isinstance(group, str) or not isinstance(name, str):
        return name
    return f"{group.removesuffix('__')}__{name}"


def first_groups(tools: object) -> dict[str, str | None]:
    """Return the group of the first tool with each joined name; None if it is outside of any group."""
    found: dict[str, str | None] = {}
    for _, group, tool in tools_of(tools):
        if isinstance(name := joined(group, tool.get("name")), str):
            found.setdefault(name, group)
    return found


def groups_by_name(tools: object) -> dict[object, tuple[str, str]]:
    """Return the group and the own name of each tool in a group, by its joined name."""
    groups = first_groups(tools)
    found: dict[object, tuple[str, str]] = {}
    for _, group, tool in tools_of(tools):
        if (
            group is not None
            and isinstance(name := tool.get("name"), str)
            and groups[str(joined(group, name))] == group
        ):
            found[joined(group, name)] = (group, name)
    return found
