"""Kernels and collectives of a compiled XLA program, counted in its text.

On an accelerator, each instruction of a computation that is not mere bookkeeping starts a kernel: a fusion, a copy, a
sort, a call of a library. A loop starts those of its body at every pass. Where a program branches, the largest branch
counts.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator

from ksim.preflight.devices import result_bytes

_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"([a-z][\w\-]*)\(")
_TRIP_COUNT = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_CALLED = re.compile(r"(?:to_apply|calls|body|condition|called_computations|computation)=\{?%?([\w.\-]+)")
_LIMIT = re.compile(r"^s32\[\]\S* constant\((\d+)\)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:true_computation|false_computation)=%?([\w.\-]+)|branch_computations=\{([^}]*)\}")
_NO_KERNEL = frozenset(
    {
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while", "conditional"),
        *("call", "opt-barrier", "add-dependency", "partition-id", "replica-id", "domain", "get-dimension-size"),
        *("async-start", "async-update", "async-done", "copy-done"),
        *(f"{name}-done" for name in ("all-reduce", "all-gather", "collective-permute")),
    }
)
_CALLERS = ("while", "call", "conditional", "async-start")
"""Instructions whose computations start kernels of their own, unlike those of a fusion or a reduction."""
_COLLECTIVES = frozenset(
    f"{name}{suffix}"
    for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
    for suffix in ("", "-start")
)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction: its opcode, the type of its result, and its text."""

    opcode: str
    result: str
    text: str

    @property
    def called(self) -> list[str]:
        """Computations that it calls once, or in every pass."""
        return _CALLED.findall(self.text)

    @property
    def branches(self) -> list[str]:
        """Computations of which it calls one."""
        found = [one or several for one, several in _BRANCHES.findall(self.text)]
        return [name.strip().lstrip("%") for part in found for name in part.split(",")]


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop: its passes (None if unknown), its kernels in each, and those of the loops around it."""

    trip_count: int | None
    kernels: int
    around: tuple[int | None, ...]


class Program:
    """The computations of a compiled program, by name."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        current: list[Instruction] | None = None
        for line in text.splitlines():
            header = _HEADER.match(line)
            if header:
                current = self.computations.setdefault(header[1], [])
                self.entry = header[1] if line.startswith("ENTRY") else self.entry
            elif line.startswith("}"):
                current = None
            elif current is not None and (matched := _INSTRUCTION.match(line)):
                opcode = _OPCODE.search(_without_layouts(matched[2]))
                if opcode:
                    result = matched[2][: matched[2].find(f" {opcode[1]}(")]
                    current.append(Instruction(opcode[1], result, matched[2]))
        self._counted: dict[str, int] = {}

    def trip_count(self, loop: Instruction) -> int | None:
        """Passes of a `while`: those the compiler knows, or else the only limit in its condition; None if unknown."""
        known = _TRIP_COUNT.search(loop.text)
        if known:
            return int(known[1])
        (condition,) = _CONDITION.findall(loop.text)
        limits = [found[1] for x in self.computations.get(condition, ()) if (found := _LIMIT.match(x.text))]
        return int(limits[0]) if len(limits) == 1 else None

    def kernels(self, computation: str | None = None) -> int:
        """Kernels that a computation starts, by default the whole program; a loop of unknown length counts once."""
        name = computation or self.entry
        if name not in self._counted:
            self._counted[name] = sum(self._kernels_of(x) for x in self.computations.get(name, ()))
        return self._counted[name]

    def _kernels_of(self, instruction: Instruction) -> int:
        if instruction.opcode == "while":
            return (self.trip_count(instruction) or 1) * sum(map(self.kernels, instruction.called))
        if instruction.opcode == "conditional":
            return max(map(self.kernels, instruction.branches), default=0)
        if instruction.opcode in ("call", "async-start"):
            return sum(map(self.kernels, instruction.called))
        return int(instruction.opcode not in _NO_KERNEL)

    def loops(self) -> list[Loop]:
        """All loops of the program."""
        return list(self._loops(self.entry, ()))

    def _loops(self, computation: str, around: tuple[int | None, ...]) -> Iterator[Loop]:
        for x in self.computations.get(computation, ()):
            inside = around
            if x.opcode == "while":
                yield Loop(self.trip_count(x), sum(map(self.kernels, x.called)), around)
                inside = (*around, self.trip_count(x))
            if x.opcode in _CALLERS:
                for name in (*x.called, *x.branches):
                    yield from self._loops(name, inside)

    def collectives(self) -> dict[str, tuple[int, int]]:
        """Number of collectives of each kind in a run of the program, and their bytes on each chip."""
        found: dict[str, tuple[int, int]] = {}

        def visit(computation: str, times: int) -> None:
            for x in self.computations.get(computation, ()):
                if x.opcode in _COLLECTIVES:
                    kind = x.opcode.removesuffix("-start")
                    # The result of a start is the operand and what the collective returns, in turn.
                    size = result_bytes(x.result)
                    if kind != x.opcode:
                        size = size // 2 if kind != "all-gather" else size - result_bytes(x.result.split("),")[0])
                    count, total = found.get(kind, (0, 0))
                    found[kind] = (count + times, total + times * size)
                passes = (self.trip_count(x) or 1) if x.opcode == "while" else 1
                if x.opcode in _CALLERS:
                    for name in (*x.called, *x.branches):
                        visit(name, passes * times)

        visit(self.entry, 1)
        return found


def loop_of(loops: list[Loop], is_it: Callable[[Loop], bool]) -> Loop | None:
    """The loop with the most kernels of those that meet a condition."""
    return max(filter(is_it, loops), key=lambda loop: loop.kernels, default=None)


def _without_layouts(text: str) -> str:
    """The text of an instruction without its types' layouts, whose tiles look like calls: `{1,0:T(8,128)}`."""
    return re.sub(r"\{[\d,]*:[^}]*\}", "", text)
