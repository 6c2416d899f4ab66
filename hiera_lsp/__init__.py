"""The editor's terms: one file a feature. Nothing below knows the language server protocol."""
