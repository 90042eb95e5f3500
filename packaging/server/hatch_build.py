"""Puts the server's packages from the top of the repository into the wheel; an editable wheel only points there.

Leaves out streaming_bench/research, which repeats the measurements of the documentation in a checkout.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LEFT_OUT = ("research", "__pycache__")


class PackagesHook(BuildHookInterface):
    """The files of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add each entry of a package but those that are left out, and the contract, which the gateway serves."""
        if version == "editable":
            return
        top = Path(self.root).parents[1]
        included = {
            str(path): f"{package}/{path.name}"
            for package in ("gateway", "providers", "streaming_bench")
            for path in sorted((top / package).iterdir())
            if path.name not in LEFT_OUT
        }
        build_data["force_include"].update(included | {str(top / "openapi.yaml"): "gateway/openapi.yaml"})
