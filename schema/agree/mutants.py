"""Writes messages that differ from the valid examples in one place, for three validators to compare.

usage: mutants.py <the schema folder> <a folder for c2s, s2c and s2s>

The examples show what was thought of. These show what was not: odd texts, values of other types and
missing members, everywhere. The choice is the same in each run.
"""

import copy
import json
import random
import sys
from pathlib import Path

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
random.seed(6)

TEXTS = [
    "", "*", "#", "#a", "&x", "+", "!y", "a b", "a,b", "a:b", "#a:b", ":a", "a\n", "\n", "a\r", "a\t", "a\0",
    "a\x7f", "a\x85", "a\xa0b", "a\u2028", "é", "１２３", "\U0001f30a", "a\u0301", "[x]", "^a", "a-", "-a", "9a",
    "a.b", "a..b", ".a", "a-.b", "a--b", "A" * 42, "A" * 43, "A" * 44, "A" * 43 + "\n", "A" * 86, "x" * 32,
    "x" * 33, "#" + "c" * 49, "#" + "c" * 50, "s" * 63, "s" * 64, "t" * 390, "t" * 391, "\U0001f30a" * 32,
    "\U0001f30a" * 390, "0000-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z", "2000-02-29T00:00:00Z", "2100-02-29T00:00:00Z", "2026-02-29T00:00:00Z",
    "2026-04-31T00:00:00Z", "2026-03-01T12:00:00.1Z", "2026-03-01T12:00:00.1234567890Z", "2026-03-01T23:59:60Z",
    "2026-06-30T23:59:60Z", "2026-03-01T12:00:00z", "2026-03-01T12:00:00-00:00", "2026-03-01T12:00Z",
    " 2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z\n", "２０２６-03-01T12:00:00Z",
    "0f8fad5b-d9cb-469f-a165-70867728950e", "0F8fad5b-d9cb-469f-a165-70867728950e",
    "0f8fad5bd9cb469fa16570867728950e", "0f8fad5b-d9cb-469f-a165-70867728950e\n", "+o", "-", "o-v", "+o+v", "+o-",
    "++o", "0", "00", "1", "999999999", "1000000000", "-1", "1.0", "=", "@", "@bob", "+bob", "@+bob", "ed25519",
    "none", "RELAY", "PRIVMSG", "001", "0001", "01", "PING\n",
]
OTHERS = [
    None, True, False, 0, 1, -1, 1.0, 1.5, 65535, 65536, 1e300, 9007199254740991,
    [], {}, [""], ["", ""], ["a"], [1], {"a": 1},
]


def places(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    for step, item in items:
        yield from places(item, (*at, step))


def replaced(message, at, change):
    message = copy.deepcopy(message)
    parent = message
    for step in at[:-1]:
        parent = parent[step]
    change(parent, at[-1])
    return message


for family in ("c2s", "s2c", "s2s"):
    lines = []
    for file in sorted((folder / "examples" / family).iterdir()):
        for example in json.loads(file.read_text(encoding="utf-8"))["valid"]:
            message = example["message"]
            if len(json.dumps(message)) > 2000:
                continue  # long lists of the same
            for at in places(message):
                if at in ((), ("command",)):
                    continue  # a validator is chosen by the command
                for value in random.sample(TEXTS, 10) + random.sample(OTHERS, 5):
                    lines.append(replaced(message, at, lambda parent, last: parent.__setitem__(last, value)))
                lines.append(replaced(message, at, lambda parent, last: parent.__delitem__(last)))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (out / family).write_text(text, encoding="utf-8")
