"""A trajectory as one self-contained HTML page: no script, no network, readable without sight, colour or mouse."""

from engine.report_html.page import STYLE, Page, page, parts

__all__ = ["STYLE", "Page", "page", "parts"]
