"""A notebook as a page: its Markdown, code and outputs.

python -m docs.site.notebook docs/notebooks/first_steps.ipynb executes it and stores in it the outputs that pages show
"""

import argparse
import base64
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

PICTURE_COLORS = 64
"""Colours of a stored picture: plots have few."""


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
            has_magic = any(line.startswith(("!", "%")) for line in text.splitlines())
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


def keep_shown(notebook: dict[str, Any]) -> None:
    """Drops the outputs of a notebook that no page shows: views of running programs, and videos."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            cell["outputs"] = [kept for output in cell["outputs"] if (kept := _kept(output)) is not None]


def _kept(output: dict[str, Any]) -> dict[str, Any] | None:
    if output["output_type"] == "stream":
        return {**output, "text": "".join(output["text"]).replace("\r", "")}
    if output["output_type"] != "execute_result" or "text/html" in output["data"]:
        return None
    data = dict(output["data"])
    if "image/png" in data:
        small = io.BytesIO()
        picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
        picture.convert("RGB").quantize(PICTURE_COLORS).save(small, "png", optimize=True)
        data = {"image/png": base64.b64encode(small.getvalue()).decode()}
    return {**output, "data": data, "execution_count": None}


def main() -> None:
    """Executes notebooks in directories of their own, and stores their outputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK.ipynb")
    paths = parser.parse_args().notebooks
    import nbclient  # noqa: PLC0415 - of an extra that building the site does not need
    import nbformat  # noqa: PLC0415 - so is this

    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as directory:
            nbclient.NotebookClient(notebook, timeout=None, resources={"metadata": {"path": directory}}).execute()
        plain = json.loads(nbformat.writes(notebook))
        keep_shown(plain)
        for cell in plain["cells"]:
            cell["metadata"].clear()  # times of execution
        path.write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
