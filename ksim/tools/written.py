"""A program before it is written: whether its task can do what it promises."""

from pathlib import Path

from ksim.errors import ConfigError


def mirror_fault(text: str, class_name: str, output: Path) -> str | None:
    """Why the task of a program has no mirror image, in a sentence; None where it has one.

    Args:
        text: The program.
        class_name: Its task.
        output: Where it will be, to which its path of the robot's file is relative.
    """
    program: dict = {"__name__": output.stem, "__file__": str(output.absolute())}
    exec(compile(text, str(output), "exec"), program)
    try:
        _ = program[class_name](program["CONFIG"]).mirror
    except ConfigError as error:
        return str(error).partition(". ")[0]
    return None
