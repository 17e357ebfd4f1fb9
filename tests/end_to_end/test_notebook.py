"""The notebook, executed as its reader would."""

import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[2]
NOTEBOOK = "docs/notebooks/first_steps.ipynb"
SHORTER = {"max_iterations=150": "max_iterations=24", "eval_every_n_iterations=50": "eval_every_n_iterations=12"}
"""Options of its training and their replacements here: its minute takes several beside other tests."""


def outputs(cell):
    """The outputs of a cell: all of its plain text and HTML, and the MIME types of all its data."""
    text, types = "", set()
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        text += output.get("text", "") + data.get("text/plain", "") + data.get("text/html", "")
        types |= set(data)
    return text, types


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Code cells by their first line, executed in a directory of their own."""
    directory = tmp_path_factory.mktemp("clone")
    (directory / "docs" / "notebooks").mkdir(parents=True)
    (directory / "examples").symlink_to(ROOT / "examples")
    source = (ROOT / NOTEBOOK).read_text()
    for option, shorter in SHORTER.items():
        assert source.count(option) == 1
        source = source.replace(option, shorter)
    notebook = nbformat.reads(source, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=900, resources={"metadata": {"path": str(directory / "docs" / "notebooks")}}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.delenv("XLA_FLAGS", raising=False)
        client.execute()
    return {cell.source.splitlines()[0]: outputs(cell) for cell in notebook.cells if cell.cell_type == "code"}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="The film needs EGL or OSMesa.")
def test_training_is_shown_in_place_and_plots_film_and_policy_come_back(cells):
    progress, _ = cells["config = ksim.PPOConfig("]
    # One view, as it was left, and no line for each iteration.
    assert progress.count("iteration 24 of 24") == 1
    assert "iteration 23" not in progress
    for name in ("speed", "return", "rewards", "evaluation"):
        assert name in progress
    assert "image/png" in cells["result.plot()"][1]
    assert "data:video/mp4;base64," in cells["result.video()"][0]
    assert "image/png" in cells['result.plot("velocity")'][1]
    figures, _ = cells['returns = result.metrics["episode/return"]  # NaN where no episode ended']
    assert "24 iterations, last return " in figures
    exported = next(text for line, (text, _) in cells.items() if line.startswith("exported = "))
    assert "policy.onnx" in exported
