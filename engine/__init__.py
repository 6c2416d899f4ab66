"""Decisions and evidence. No editor protocol, and no torch in this process."""
