"""The messages of source files, to hold what a page quotes against them."""

import ast
import itertools


def parts_of(node):
    """The literal parts of a string expression, with None for what is put in; None if it is no string."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return [value.value if isinstance(value, ast.Constant) else None for value in node.values]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = parts_of(node.left), parts_of(node.right)
        return (left or [None]) + (right or [None]) if left or right else None
    return None


def num_literal(parts, text):
    """The number of literal characters of `text`, a prefix of what `parts` can form; -1 if it is not a prefix."""
    if not text:
        return 0
    if not parts:
        return -1
    head, *rest = parts
    if head is None:
        return max(num_literal(rest, text[i:]) for i in range(len(text) + 1))
    length = min(len(head), len(text))
    after = num_literal(rest, text[length:]) if head[:length] == text[:length] else -1
    return after + length if after >= 0 else -1


def describes(text, parts):
    """Whether a message with example values is one of these: most of it must be the code's, and not put in."""
    return num_literal(parts, text) >= max(10, 0.3 * len(text))


def strings_of(path, *, raised):
    """The string expressions of a file: all of them, or the messages of its errors, warnings and the launcher."""
    tree = ast.parse(path.read_text())
    if not raised:
        nodes = list(ast.walk(tree))
    else:
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
        name = lambda call: getattr(call.func, "id", getattr(call.func, "attr", ""))
        nodes = [c.args[0] for c in calls if name(c).endswith("Error") or name(c) in ("warn_user", "say")]
    return [parts for parts in map(parts_of, nodes) if parts is not None] + list(rules_of(tree))


def rules_of(tree):
    """Messages of `check_rule(what, is_met, rule)`: `what must be rule.`, both of which may be local variables."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]

        def values(node, assigned=assigned):
            if isinstance(node, ast.IfExp):
                return [*values(node.body), *values(node.orelse)]
            if isinstance(node, ast.Name):
                return [x for a in assigned if getattr(a.targets[0], "id", "") == node.id for x in values(a.value)]
            return [node]

        for call in ast.walk(function):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "check_rule":
                for what, rule in itertools.product(values(call.args[0]), values(call.args[2])):
                    named, ruled = parts_of(what), parts_of(rule)
                    if named is not None and ruled is not None:
                        yield [*named, " must be ", *ruled, "."]
