"""Damages to JSON that leave it JSON, and to any text: by an editor, a script, or somebody of ill will."""

import json
import random

DEEP = "[" * 3000 + "]" * 3000
WORDS = (
    *("null", "true", "0", "-1", "1.5", "1e400", "-1e400", "NaN", "Infinity", "9" * 18, "9" * 30, "9" * 5000),
    *('""', '"x"', '"1"', '"\\u0000"', '"\\ud800"', '"${oc.env:HOME}"', '"../.."', '"/etc/passwd"', f'"{"x" * 5000}"'),
    *("[]", "{}", "[[]]", "[0]", '["x"]', '{"x": 1}', '{"mean": 1}', '{"iteration": "1"}', "[1, 2, 3]"),
    *("[" * 20 + "]" * 20, "[" * 500 + "]" * 500, DEEP),
)
"""Values of JSON, by their texts: some can only be read."""


def misshapen(text: str, seed: int) -> str:
    """A text of JSON with one to three values or keys that are something else, missing, or there twice."""
    rng = random.Random(seed)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        text = _misshapen_once(text, rng)
    return text


def _misshapen_once(text, rng):
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    places = list(_places(value))
    if not places or rng.random() < 0.05:
        return rng.choice(WORDS)
    # Near the root, where what is read is; not among the many names of arrays.
    holder, key = rng.choice([place for place in places if rng.random() < 0.3] or places)
    kind = rng.choice(["replace", "replace", "replace", "remove", "rename", "swap"])
    mark = "\0a place of its own\0"
    if kind == "remove":
        del holder[key]
    elif kind == "rename" and isinstance(holder, dict):
        holder[rng.choice(["", "x", "..", key.upper()])] = holder.pop(key)
    elif kind == "swap":
        other, name = rng.choice(places)
        holder[key], other[name] = other[name], holder[key]
    else:
        holder[key] = mark
    try:
        return json.dumps(value).replace(json.dumps(mark), rng.choice(WORDS))
    except (ValueError, RecursionError):  # a value within itself
        return text


def _places(value, depth=0):
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        if depth < 3:
            yield from _places(value[key], depth + 1)


def garbled(data: bytes, seed: int) -> bytes:
    """The bytes of a file, of which some are others, or in another encoding."""
    rng = random.Random(seed)
    place = rng.randrange(len(data) + 1)
    return rng.choice(
        [
            data[:place],
            data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :],
            data[:place] + b"\0" + data[place:],
            data[:place] + b"\n" + data[place:],
            data[:place] + rng.choice(WORDS).encode() + data[place:],
            b"\xef\xbb\xbf" + data,
            data.decode().encode("utf-16"),
            data.decode().encode("utf-32"),
            data + data,
            b"",
            b"\0" * 100,
            b"\xff" * 100,
            DEEP.encode(),
            b"x: 2001-99-99\n",
            b"- a\n- b\n",
            b"&a [*a]",
        ]
    )
