"""The package's version; pyproject.toml reads it from here."""

__version__ = "0.3.0.dev0"
