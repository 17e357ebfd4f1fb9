"""Operations of a compiled program, read from its HLO text."""

import re
from collections import Counter

COMPUTATION = re.compile(r"^(ENTRY )?%(\S+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%\S+ = (?P<type>\([^=]*?\)|\S+) (?P<op>[\w-]+)\(")
CALLED = re.compile(r"(?:to_apply|calls|true_computation|false_computation)=%([\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def all_reduces(text: str) -> Counter[str]:
    """The number of all-reduces in one run of a program, by the type of the reduced value, as in `f32[8]`.

    A loop counts as often as it turns; of a conditional every branch counts.
    """
    computations: dict[str, list[str]] = {}
    entry = lines = None
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        if start := COMPUTATION.match(line):
            lines = computations[start[2]] = []
            entry = start[2] if start[1] else entry
        elif lines is not None:
            lines.append(line)

    def count(computation: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for line in computations[computation]:
            if (instruction := INSTRUCTION.match(line)) is None:
                continue
            op = instruction["op"]
            if op in ("all-reduce", "all-reduce-start"):
                total.update(re.findall(r"\w+\[[\d,]*\]", instruction["type"]))
            elif op == "while":
                turns = TRIP_COUNT.search(line)
                body = re.search(r"body=%([\w.-]+)", line)
                assert body
                inside = count(body[1])
                assert turns or not inside, f"A loop that reduces has no known number of turns: {line}"
                total.update({kind: n * int(turns[1]) for kind, n in inside.items()} if turns else {})
            else:
                branches = BRANCHES.search(line)
                called = re.findall(r"%([\w.-]+)", branches[1]) if branches else CALLED.findall(line)
                for name in called:
                    total.update(count(name))
        return total

    assert entry is not None
    return count(entry)
