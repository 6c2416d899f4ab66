"""Programs for the user's interpreter: standard library and torch, started by path (see main.py).

The engine never imports these modules except to find their folder.
"""
