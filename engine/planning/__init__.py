"""Planning as in the paper: which space (SSDA), which direction (SSDA), which steps (SPA).

Pure functions over plain data. What a person may want to change, the spaces, directions, rubric,
operator families and expert notes, are data files beside this module; `catalog` reads them and
adds a user's own.
"""
