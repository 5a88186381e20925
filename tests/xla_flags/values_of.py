"""Any value of a flag, and its text, by its type."""

import string

from hypothesis import strategies as st

WORDS = st.text(string.ascii_letters + string.digits + "_-./ \"'\\=#", max_size=12)
ITEMS = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=8)


def values(flag):
    """Values that can be written both ways."""
    match flag.type:
        case "bool":
            return st.booleans()
        case "int":
            limit = 1 << (flag.bits - 1)
            return st.integers(-limit, limit - 1)
        case "float":
            return st.floats(allow_nan=False, width=32)
        case "string":
            return WORDS
        case "enum":
            return st.sampled_from(flag.choices)
        case "bytes":
            return st.binary(max_size=8)
        case "map":
            return st.dictionaries(ITEMS, ITEMS, min_size=1, max_size=3)
        case "list":
            items = ITEMS
            if flag.choices:
                whole = set() if flag.signed else {"ALLCOLLECTIVES"}
                plain = [c for c in flag.choices if c not in whole]
                items = st.sampled_from(plain)
            unique = flag.signed
            return st.lists(items, min_size=1, max_size=4, unique=unique).map(tuple)
