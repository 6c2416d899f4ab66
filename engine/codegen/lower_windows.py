"""Pooling and other windows as primitive values."""

from __future__ import annotations
