"""Damages to MJCF text, as an editor, a failed download or a script would do them."""

import random
import re

ATTRIBUTE = r'\s[a-z]+="[^"]*"'
ELEMENT = r"<[^/][^>]*/>"
NUMBER = r"-?\d*\.?\d+"
NUMBERS = (
    "nan", "inf", "-inf", "1e300", "-1e300", "1e-300", "1e10", "1e38", "0", "-0", "-1", "x", "", "0 0 0", "9" * 20,
)  # fmt: skip


def damage(text: str, seed: int) -> str:
    """The text with one to three random damages."""
    rng = random.Random(seed)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        text = rng.choice(DAMAGES)(text, rng)
    return text


def _replaced(pattern, text, rng, replace):
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    place = rng.choice(found)
    return text[: place.start()] + replace(place[0]) + text[place.end() :]


def truncated(text, rng):
    return text[: rng.randrange(len(text) + 1)]


def without_attribute(text, rng):
    return _replaced(ATTRIBUTE, text, rng, lambda _: "")


def without_element(text, rng):
    return _replaced(ELEMENT, text, rng, lambda _: "")


def with_element_twice(text, rng):
    return _replaced(ELEMENT, text, rng, lambda element: element + element)


def with_other_number(text, rng):
    return _replaced(NUMBER, text, rng, lambda _: rng.choice(NUMBERS))


def with_value_of_another(text, rng):
    values = re.findall(r'"[^"]*"', text) or ['""']
    return _replaced(r'"[^"]*"', text, rng, lambda _: rng.choice(values))


def misspelt(text, rng):
    return _replaced(r"[a-z]{4,}", text, rng, lambda word: "".join(rng.sample(word, len(word))))


def with_other_character(text, rng):
    place = rng.randrange(len(text) + 1)
    return text[:place] + chr(rng.randrange(1, 0x110)) + text[place + 1 :]


DAMAGES = (
    truncated, without_attribute, without_element, with_element_twice, with_other_number, with_other_number,
    with_value_of_another, misspelt, with_other_character,
)  # fmt: skip
