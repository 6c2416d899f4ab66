"""References that are kept between candidates: the same values need not be run through them again."""


class Kept:
    """What outputs must be, by the checksums of all arguments. The oldest stay: they are what every candidate meets.

    Args:
        budget_bytes: What they may take together.
    """

    def __init__(self, budget_bytes):
        self.budget_bytes, self.bytes, self._found = budget_bytes, 0, {}

    def __bool__(self):
        return bool(self._found)

    def get(self, key):
        """(expected outputs, note, seconds that they took), or None."""
        return self._found.get(key)

    def put(self, key, found):
        """Keep, where there is room."""
        size = sum(map(_bytes, found[0]))
        if self.bytes + size <= self.budget_bytes:
            self._found[key] = found
            self.bytes += size

    def clear(self):
        """Give the memory back."""
        self._found.clear()
        self.bytes = 0


def _bytes(expected):
    # Outputs of few values share storage with larger tensors at times: what counts is what stays allocated.
    tensors = (expected.exact, expected.usual, expected.blank, expected.surely_blank, expected.nan,
               expected.other_integer)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t is not None}
    return sum(storages.values())
