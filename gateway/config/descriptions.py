"""Reads the descriptions of settings, the strings under them in settings.py, for the JSON schema alone. No units.

pydantic would read them at every start, from the source of each class.
"""

import ast
import inspect
from itertools import pairwise
from types import ModuleType


def attribute_docs(module: ModuleType) -> dict[str, dict[str, str]]:
    """Return the strings under the attributes of a module's classes, by class and attribute."""
    classes = (node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef))
    return {each.name: dict(_described(each)) for each in classes}


def _described(each: ast.ClassDef) -> list[tuple[str, str]]:
    return [
        (field.target.id, inspect.cleandoc(text.value.value))
        for field, text in pairwise(each.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    ]
