"""What a kernel must do: plain frozen data and its text forms.

This package knows no torch, no GPU and no editor. It imports nothing from `engine` or `hiera_lsp`.
"""
