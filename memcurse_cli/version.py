"""The installed version, the one that pyproject.toml names."""

from importlib.metadata import version

VERSION = version("memcurse-cli")
