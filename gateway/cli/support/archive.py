"""The archive of a support bundle: files of bounded size, without secrets. Units: bytes."""

import io
import os
import tarfile
from pathlib import Path
from typing import Final

import msgspec

from gateway.cli.support.redaction import Redaction

FILE_BYTES_MAX: Final = 8_000_000
_ALL_BYTES_MAX: Final = 64_000_000
_CUT: Final = "\n[shortened]\n"
README: Final = "README.txt"


class BundledFile(msgspec.Struct, frozen=True):
    """A file of the archive.

    Attributes:
        name: path in the archive.
        what: description for people.
        text: content, with secrets.
    """

    name: str
    what: str
    text: str


class Bundle:
    """The files of an archive, and what it does not contain.

    Args:
        redaction: removes secrets from every file.

    Attributes:
        contents: description of each file.
        left_out: lines about missing parts, with the reason of each.
    """

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._files: dict[str, bytes] = {}
        self._left = _ALL_BYTES_MAX
        self.contents: list[str] = []
        self.left_out: list[str] = []

    def add(self, entry: BundledFile) -> None:
        """Add a file; its end is missing if it is too long."""
        content = self._redaction(entry.text).encode()
        most = min(FILE_BYTES_MAX, self._left)
        if len(content) > most:
            self.leave_out(f"the end of {entry.name}", f"it has {len(content):,} bytes, at most {most:,} are kept")
            content = content[:most].decode(errors="ignore").encode() + _CUT.encode()
        self._left = max(0, self._left - len(content))
        self._files[entry.name] = content
        self.contents.append(f"{entry.name}: {entry.what}")

    def leave_out(self, what: str, reason: str) -> None:
        """Report that something is missing."""
        self.left_out.append(self._redaction(f"{what}: {reason}"))

    def report(self) -> str:
        """Return the lists of what the archive contains and what it does not."""
        lists = (("contains", self.contents), ("left out", self.left_out or ["nothing"]))
        return "".join(f"{title}:\n" + "".join(f"  {line}\n" for line in lines) for title, lines in lists)

    def write(self, file: Path, modified_s: int) -> int:
        """Write the archive, readable only for its owner; return its size.

        Args:
            modified_s: Unix time of its files.

        Raises:
            OSError: the file exists or cannot be written.
        """
        stem = file.name.removesuffix(".gz").removesuffix(".tar")
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened, tarfile.open(fileobj=opened, mode="w:gz") as archive:
            for name, content in {README: self.report().encode(), **self._files}.items():
                member = tarfile.TarInfo(f"{stem}/{name}")
                member.size, member.mtime, member.mode = len(content), modified_s, 0o600
                archive.addfile(member, io.BytesIO(content))
        return file.stat().st_size
