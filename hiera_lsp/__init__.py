"""The editor's terms: one file a feature. Nothing below knows the language server protocol."""

__version__ = "0.1.0"
