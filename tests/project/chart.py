"""The Helm chart: table and schema of its values, and its rendered examples; `main` writes them, tests compare them.

All three have one source: values.yaml with its comments, the templates and the examples.
"""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import yaml

_ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = _ROOT / "docker" / "helm" / "ttft-gateway"
RENDERED: Final = Path(__file__).with_name("chart")
EXAMPLES: Final = tuple(sorted(path.stem for path in (CHART / "examples").glob("*.yaml")))
RELEASE: Final = "ttft-gateway"

RENAMED: Final = {"replicaCount": "replicas"}

_ENTRY: Final = re.compile(r"^((?: *# .+\n)+)( *)(\w+):", re.MULTILINE)
_SECTION: Final = re.compile(r"^(\w+):$", re.MULTILINE)
_TABLE: Final = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- end of values -->)", re.DOTALL)
_APP_VERSION: Final = re.compile(r"^appVersion: (\S+)$", re.MULTILINE)  # a release changes it, without Helm
_TYPES: Final = {"disruptionBudget.maxUnavailable": ["integer", "string"]}  # types that do not follow from the default


def values() -> dict[str, object]:
    """Return the default of each value that is no section, by its path."""
    found: dict[str, object] = {}
    sections = set(_SECTION.findall((CHART / "values.yaml").read_text(encoding="utf-8")))
    for name, value in yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")).items():
        if name in sections:
            found |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            found[name] = value
    return found


def descriptions() -> dict[str, str]:
    """Return the comment of each value, by its path."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    heads = [(match.start(), match[1]) for match in _SECTION.finditer(text)]
    found = {}
    for match in _ENTRY.finditer(text):
        comment = " ".join(line.strip().removeprefix("# ") for line in match[1].splitlines())
        section = [name for start, name in heads if start < match.start()][-1] + "." if match[2] else ""
        found[section + match[3]] = comment
    return found


def table() -> str:
    """Return the table of values for the README."""
    about = descriptions()
    rows = [f"| `{path}` | `{json.dumps(value)}` | {about[path]} |\n" for path, value in values().items()]
    return "| value | default | meaning |\n|---|---|---|\n" + "".join(rows)


def readme() -> str:
    """Return the README with the current table."""
    return _TABLE.sub(lambda _: table(), (CHART / "README.md").read_text(encoding="utf-8"))


def schema() -> str:
    """Return values.schema.json: the type of each default, and no further values."""
    properties: dict[str, dict[str, object]] = {}
    about = descriptions()
    for path, value in values().items():
        kinds = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
        entry: dict[str, object] = {"type": _TYPES.get(path, [kinds[type(value)]]), "description": about[path]}
        section, _, name = path.rpartition(".")
        if section:
            parent = properties.setdefault(section, {"type": "object", "additionalProperties": False, "properties": {}})
            inner = parent["properties"]
            assert isinstance(inner, dict)
            inner[name] = entry
        else:
            properties[name] = entry
    for name, present in RENAMED.items():  # the template names the present name in its error
        properties[name] = {"description": f"Not a value of this chart; write `{present}`."}
    properties["global"] = {"type": "object", "description": "Set by Helm where this chart is a part of another."}
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }
    return json.dumps(whole, indent=2) + "\n"


def digest() -> str:
    """Return a hash of everything that the rendered examples follow from."""
    files = [CHART / "values.yaml", *(CHART / "templates").iterdir()]
    about = (CHART / "Chart.yaml").read_text(encoding="utf-8")
    sha = hashlib.sha256(_APP_VERSION.sub("", about).encode())
    for file in [*sorted(files), *((CHART / "examples" / f"{name}.yaml") for name in EXAMPLES)]:
        sha.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return sha.hexdigest()


def helm() -> str | None:
    """Return the path of helm, None without it."""
    return shutil.which("helm")


def run_helm(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of helm in the chart's folder, for the oldest Kubernetes that the chart supports."""
    return subprocess.run(
        [helm() or "helm", command, "--kube-version", "1.30.0", *arguments],
        cwd=CHART,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def render(example: str, *arguments: str) -> str:
    """Return the manifests of an example as Helm renders them, without the gateway's version."""
    done = run_helm("template", RELEASE, ".", "-f", f"examples/{example}.yaml", *arguments)
    if done.returncode:
        raise RuntimeError(done.stderr)
    [version] = _APP_VERSION.findall((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    return re.sub(rf'(: "(?:ttft-gateway:)?){re.escape(version)}"', r'\1VERSION"', done.stdout)


def main() -> None:
    """Write everything that follows from the chart."""
    (CHART / "README.md").write_text(readme(), encoding="utf-8")
    (CHART / "values.schema.json").write_text(schema(), encoding="utf-8")
    RENDERED.mkdir(exist_ok=True)
    for name in EXAMPLES:
        text = f"# Written by tests/project/chart.py; chart {digest()}\n{render(name)}"
        (RENDERED / f"{name}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
