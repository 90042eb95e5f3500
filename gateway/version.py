"""Version of the distribution, the same as in pyproject.toml.

A constant: reading the metadata of the distribution would load a parser of e-mail. Loads nothing else. No units.
"""

from typing import Final

VERSION: Final = "0.1.0"
