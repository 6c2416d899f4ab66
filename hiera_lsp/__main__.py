"""`python -m hiera_lsp` is `hiera-lsp`."""

from hiera_lsp.start import server

server()
