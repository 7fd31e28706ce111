"""Numbers by key for millions of keys, in 16 bytes each, where a dict of texts takes 200.

Keys are 64-bit digests. New ones gather in a small dict, which then becomes a pair of sorted
arrays; arrays are merged while they are short, so that few have to be searched and no merge copies
everything.
"""

import hashlib
from collections.abc import Sequence

RECENT = 65_536
LARGEST = 2**21


def key_of(text: str) -> int:
    """Return the key of a text: 64 bits of its digest."""
    return int.from_bytes(
        hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    )


class KeyTable:
    """A number below 2**63 for each 64-bit key."""

    def __init__(self) -> None:
        self._recent: dict[int, int] = {}
        # Pairs of arrays: sorted keys, and the number of each. numpy is imported where it is used,
        # since the command line passes here.
        self._levels = []

    def get(self, key: int) -> int | None:
        """Return the number of a key, or None."""
        found = self._recent.get(key)
        if found is not None or not self._levels:
            return found
        level = self._level_of(key)
        if level is None:
            return None
        return int(self._levels[level[0]][1][level[1]])

    def __setitem__(self, key: int, number: int) -> None:
        level = self._level_of(key) if key not in self._recent else None
        if level is not None:
            self._levels[level[0]][1][level[1]] = number
            return
        self._recent[key] = number
        if len(self._recent) >= RECENT:
            self._settle()

    def setdefault(self, key: int, number: int) -> int:
        """Return the number of a key, which becomes `number` if it has none."""
        found = self.get(key)
        if found is not None:
            return found
        self[key] = number
        return number

    def _level_of(self, key: int) -> tuple[int, int] | None:
        import numpy as np

        wanted = np.uint64(key)
        for index, (keys, _) in enumerate(self._levels):
            at = int(keys.searchsorted(wanted))
            if at < len(keys) and keys[at] == wanted:
                return index, at
        return None

    def _settle(self) -> None:
        """Move the recent keys into sorted arrays."""
        import numpy as np

        keys = np.fromiter(self._recent.keys(), np.uint64, len(self._recent))
        numbers = np.fromiter(self._recent.values(), np.int64, len(self._recent))
        order = keys.argsort()
        self._levels.append((keys[order], numbers[order]))
        self._recent = {}
        while len(self._levels) > 1:
            (one, its), (other, others) = self._levels[-2:]
            if len(one) > 2 * len(other) or len(one) + len(other) > LARGEST:
                return
            joined = np.concatenate((one, other))
            order = joined.argsort(kind="stable")
            self._levels[-2:] = [(joined[order], np.concatenate((its, others))[order])]


class UidPlaces:
    """The place of each uid in a sequence that holds them, by 12 bytes a uid."""

    def __init__(self, uids: Sequence[str]) -> None:
        import numpy as np

        keys = np.fromiter(map(key_of, uids), np.uint64, len(uids))
        self._uids = uids
        self._order = keys.argsort(kind="stable").astype(np.uint32)
        self._keys = keys[self._order]

    def get(self, uid: str) -> int | None:
        """Return the place of a uid, the last one if it has several, or None."""
        import numpy as np

        at = int(self._keys.searchsorted(np.uint64(key_of(uid)), side="right"))
        while at and self._keys[at - 1] == np.uint64(key_of(uid)):
            at -= 1
            place = int(self._order[at])
            if self._uids[place] == uid:
                return place
        return None

    def __contains__(self, uid: object) -> bool:
        return isinstance(uid, str) and self.get(uid) is not None

    def __getitem__(self, uid: str) -> int:
        place = self.get(uid)
        if place is None:
            raise KeyError(uid)
        return place
