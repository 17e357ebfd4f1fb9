"""A notebook as a page: its Markdown, code and outputs."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def markdown(notebook: dict[str, Any], directory: Path, address: str) -> Iterator[str]:
    """The parts of a notebook's page.

    Args:
        notebook: The notebook, of nbformat 4.
        directory: Where pictures among its outputs are written.
        address: The directory's address in the page.
    """
    for number, cell in enumerate(notebook["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield text
        elif cell["cell_type"] == "code":
            has_magic = any(line.startswith(("!", "%")) for line in cell["source"])
            yield f"```{'text' if has_magic else 'python'}\n{text}\n```"
            for i, output in enumerate(cell["outputs"]):
                yield from _output(output, directory / f"cell_{number}_{i}.png", address)


def _output(output: dict[str, Any], path: Path, address: str) -> Iterator[str]:
    """An output of a cell: a picture, or else plain text."""
    data = output.get("data", {})
    if "image/png" in data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode("".join(data["image/png"])))
        yield f"![Output of the cell above]({address}/{path.name})"
    elif text := "".join(output.get("text", data.get("text/plain", ""))).strip():
        yield f"```text\n{text}\n```"
