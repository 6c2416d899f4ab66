"""Takes keys out of every text that could be shown, stored or sent."""

from __future__ import annotations

import re

SHOWN = "[key]"
_LIKE_KEYS = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|sess)[-_][A-Za-z0-9_\-*.]{6,}|\bAIza[A-Za-z0-9_\-]{20,}|(?i:\bbearer\s+)[^\s\"',;]{6,}")


def redact(text: str, key: str = "") -> str:
    """`text` on one line, without `key` and without anything that looks like one.

    Args:
        text: What is to be shown.
        key: The key that is in use, or empty.
    """
    if len(key) >= 4:
        text = text.replace(key, SHOWN)
    return plain(_LIKE_KEYS.sub(SHOWN, text))


def plain(text: str) -> str:
    """One line without control characters: what a model or an endpoint wrote may reach a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def without_key(text: str, key: str) -> str:
    """`text` without `key` alone: for what is sent, where nothing else may change."""
    return text.replace(key, SHOWN) if len(key) >= 8 else text
