"""The notebook, executed as its reader would, and its page."""

import json
import sys

import pytest

from docs.site.notebook import keep_shown, markdown
from tests.support.processes import ROOT, run
from tests.support.scale import only_in_full

NOTEBOOK = ROOT / "docs/notebooks/first_steps.ipynb"
SHORTER = {
    "max_iterations=120": "max_iterations=3, num_envs=64, episode_s=1.0, eval_num_envs=2",
    "eval_every_n_iterations=20": "eval_every_n_iterations=1",
}
"""Options of its training and their replacements here: its minutes take several times as long beside other tests."""


def outputs(cell):
    """The outputs of a cell: all of its plain text and HTML, and the MIME types of all its data."""
    text, types = "", set()
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        parts = (output.get("text", ""), data.get("text/plain", ""), data.get("text/html", ""))
        text += "".join("".join(part) for part in parts)
        types |= set(data)
    return text, types


EXECUTE = """
import nbclient, nbformat
notebook = nbformat.read("first_steps.ipynb", as_version=4)
nbclient.NotebookClient(notebook, timeout=900).execute()
nbformat.write(notebook, "first_steps.ipynb")
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Code cells by their first line, executed in an empty folder."""
    for module in ("nbclient", "ipykernel"):
        pytest.importorskip(module, reason="needs the notebook's packages: pip install -e '.[notebook]'")
    pytest.importorskip("onnx", reason="needs onnx: pip install -e '.[export]'")
    source = NOTEBOOK.read_text()
    for option, shorter in SHORTER.items():
        assert source.count(option) == 1
        source = source.replace(option, shorter)
    folder = tmp_path_factory.mktemp("empty")
    (folder / NOTEBOOK.name).write_text(source)
    run("-c", EXECUTE, cwd=folder)
    notebook = json.loads((folder / NOTEBOOK.name).read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return {"".join(cell["source"]).splitlines()[0]: outputs(cell) for cell in code}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="The film needs EGL or OSMesa.")
@only_in_full("trains the quadruped")
def test_training_is_shown_in_place_and_plots_film_and_policy_come_back(cells):
    progress, _ = cells["from quadruped import CONFIG, Quadruped"]
    # One view, as it was left, and no line for each iteration.
    assert progress.count("iteration 3 of 3") == 1
    assert "iteration 2" not in progress
    for name in ("speed", "return", "rewards", "evaluation"):
        assert name in progress
    assert "image/png" in cells["result.plot()"][1]
    assert "data:video/mp4;base64," in cells["result.video()"][0]
    assert "image/png" in cells['result.plot("velocity")'][1]
    errors, _ = cells["for evaluation in result.evaluations:"]
    assert [line.split(":")[0].strip() for line in errors.splitlines()] == ["1", "2", "3"]
    figures, _ = cells['returns = result.metrics["episode/return"]  # NaN where no episode ended']
    assert "3 iterations, last return " in figures
    exported = next(text for line, (text, _) in cells.items() if line.startswith("exported = "))
    assert "policy.onnx" in exported


def stored():
    """The notebook with the outputs that it has in the repository."""
    return json.loads(NOTEBOOK.read_text())


def test_stored_outputs_are_of_a_training_whose_error_falls_by_half():
    (cell,) = [cell for cell in stored()["cells"] if "for evaluation in" in "".join(cell["source"])]
    (printed,) = cell["outputs"]
    errors = [float(line.split()[1]) for line in "".join(printed["text"]).splitlines()]
    assert errors[-1] < errors[0] / 2


def test_page_of_the_notebook_shows_its_code_and_pictures(tmp_path):
    text = "\n\n".join(markdown(stored(), tmp_path, "/pictures"))
    assert text.startswith("# First steps\n")
    assert "```text\ncommand = f" in text  # a line for the shell is no Python
    assert "```python\nresult.plot()\n```" in text
    shown = sorted(f"![Output of the cell above](/pictures/{path.name})" for path in tmp_path.glob("*.png"))
    assert len(shown) == 2
    assert all(picture in text for picture in shown)


def test_outputs_that_no_page_shows_are_not_stored():
    notebook = stored()
    (cell,) = [cell for cell in notebook["cells"] if "".join(cell["source"]) == "result.video()"]
    video = {
        "output_type": "execute_result",
        "metadata": {},
        "data": {"text/html": "<video>", "text/plain": "Artifact"},
    }
    progress = {"output_type": "display_data", "metadata": {}, "data": {"text/html": "iteration 3"}}
    figures = {"output_type": "stream", "name": "stdout", "text": ["0.14 m/s\r\n"]}
    cell["outputs"] = [progress, figures, video]
    keep_shown(notebook)
    assert cell["outputs"] == [figures | {"text": "0.14 m/s\n"}]
