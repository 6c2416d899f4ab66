"""Losses as element-wise values and reductions."""

from __future__ import annotations
