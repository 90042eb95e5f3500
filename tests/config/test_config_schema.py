"""The JSON schema of the configuration file, as an editor uses it: valid itself, and in agreement with what loads."""

import importlib
import re
import textwrap
from typing import Any

import pytest

from checkout import ROOT
from gateway.cli.parser import PROGRAM
from gateway.config.document import read_yaml
from gateway.config.loader import json_schema
from gateway.config.settings import Settings

EXAMPLE = ROOT / "examples/gateway.yaml"
PARTS = ROOT / "docs/configuration.md"  # where parts of a configuration are shown; elsewhere only whole ones are
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REPLICA = "{name: a, kind: vllm, base_url: http://h:1/v1}"
MODELS = f"models: [{{name: m, replicas: [{REPLICA}]}}]\n"

jsonschema: Any = importlib.import_module("jsonschema")  # it has no types


def shown() -> list[Any]:
    """Every configuration that a page or the example shows."""
    found = [pytest.param(EXAMPLE.read_text(), id="example")]
    for page in PAGES:
        for number, text in enumerate(re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)):
            if page == PARTS or re.search("^models:", text, re.MULTILINE):
                found.append(pytest.param(whole(text), id=f"{page.relative_to(ROOT)} {number}"))
    return found


def whole(text: str) -> str:
    """A configuration of which a page shows all, some settings of the top level, or some of a model."""
    if re.search("^models:", text, re.MULTILINE):
        return text
    key = re.match(r"(\w+):", text)
    assert key is not None, text
    if key[1] in Settings.model_fields:
        return MODELS + text
    return f"models:\n- name: m\n  replicas: [{REPLICA}]\n" + textwrap.indent(text, "  ")


def complaints(text: str) -> list[str]:
    """Return the errors that an editor shows for a file; `${NAME}` is text, independent of its value."""
    names = {name: "${" + name + "}" for name in re.findall(r"\$\{(\w+)\}", text)}
    validator = jsonschema.Draft202012Validator(json_schema())
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(read_yaml(text, names).data)]


def test_the_schema_is_one() -> None:
    """The schema names its draft, and is valid under that draft."""
    schema = json_schema()
    assert schema["$schema"] == jsonschema.Draft202012Validator.META_SCHEMA["$id"]
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("text", shown())
def test_what_is_shown_is_good(text: str) -> None:
    """Every configuration in the documentation is valid under the schema."""
    assert complaints(text) == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (MODELS + "drain_timeout: 30", "$.drain_timeout"),
        (MODELS + "listn: 127.0.0.1:1", "$"),
        (MODELS + "hedge: {policy: fastest}", "$.hedge.policy"),
        (MODELS + "hedge: {budget: 0.1}", "$.hedge.budget"),
        (MODELS + "limits: {n_max: 0}", "$.limits.n_max"),
        (MODELS + "keys: [{name: a}]", "$.keys[0]"),
        (MODELS.replace("vllm", "vlm"), "$.models[0].replicas[0].kind"),
        (MODELS.replace("name: m, ", ""), "$.models[0]"),
        ("models: []", "$.models"),
        ("hedge: {policy: off}", "$"),
    ],
)
def test_an_editor_marks_mistakes(text: str, place: str) -> None:
    """An error has the path of the mistake."""
    assert [complaint.partition(": ")[0] for complaint in complaints(text)] == [place]


def test_the_example_names_its_schema() -> None:
    """The example's first line names the schema for editors, and the docs show that line."""
    line = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", EXAMPLE.read_text().splitlines()[0])
    assert line is not None
    assert (EXAMPLE.parent / line[1]).resolve() == ROOT / "docs/config.schema.json"  # its content: test_settings.py
    page = (ROOT / "docs/configuration.md").read_text()
    assert "# yaml-language-server: $schema=" in page
    assert f"{PROGRAM} config-schema" in page
