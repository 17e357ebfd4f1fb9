"""The blocks of code of all pages run as written, print what the pages say and leave behind what they say."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.end_to_end.pages import (
    BLOCKS,
    FOLDERS,
    PAGES,
    ROOT,
    code,
    finish,
    lines_of,
    make_folder,
    read,
    rows,
    run,
    runs,
    start_bash,
)
from tests.support.scale import scale

COVERED = (
    # README.md and running.md
    r"checkpoint=pretrained",
    r"num_devices=2 num_envs=64\n",
    r"all options",
    r"viewer_while_training",
    r"eval checkpoint=runs/humanoid_walking_distributed",
    r"run_mode=export checkpoint=runs/humanoid_walking_distributed",
    # DISTRIBUTED_TRAINING.md
    r"num_envs=4096$",
    r"layout=shard_map",
    r"grad_sync_period",
    r"num_envs=512 num_devices=2",
    r"^python -m ksim\.launch --nproc-per-node 2 -m examples\.walking_distributed num_envs=1024\n",
    r"log_level=debug",
    # clusters.md and reliability.md
    r"--max-restarts 3",
    r"--predict",
    r"num_processes=2 process_id=0",
    r"ksim\.tools\.scaling \S+ num_envs=1024 --devices",
    r"^python \S+ \S+ run_dir=runs/mine resume=auto",
    r"scontrol requeue",
    r"ksim\.launch --nnodes 2 --node-rank 0",
    r"^mpirun -np 2",
    # learning.md and algorithms.md
    r"eval_push_speed=0\.5",
    r"examples\.quadruped max_iterations=250",
    r"examples\.tracking num_envs=1024",
)
"""Blocks with a test of their own, or of the form of another block or test: patterns, each of one block."""
ALL = runs()
UNCOVERED = [block for block in ALL if not any(re.search(x, block.text) for x in COVERED)]
TOGETHER = {
    "--prepare num_envs=4": r"^python dog_(built|curriculum|network|observation|stands|velocity)\.py num_envs",
    "num_envs=4 max_iterations=1 eval_at_end=false tensorboard=false video=false plots=false": (
        r"^python dog_(callbacks|command|logger|loss|reward)\.py num_envs"
    ),
}
"""Programs that run in one process unless all cases are tried, by their arguments: a pattern of their commands."""
RUNS = scale([block for block in UNCOVERED if not any(re.search(x, block.text) for x in TOGETHER.values())], ALL)

PRINTS = (
    ("several", r"^(?!.*(ksim\.tools|shares\.py))", r"iteration (\d+)/\1\b"),
    ("several", r"ksim\.launch|sbatch|mpirun|num_processes=2", r"processes\s+│\s+2"),
    ("several", r"num_devices=2", r"devices\s+│\s+2 x cpu"),
    ("several", r"run_dir=runs/first", r"processes\s+│\s+1"),
    ("several", r"run_mode=eval", r"survived"),
    ("several", r"train\.py", r"512 environments on each device, 6144 steps per optimizer step"),
    ("clone", r"python examples/deploy\.py", r"Stood for"),
    ("own", r"dog\.py run_mode=eval", r"survived"),
    ("own", r"dog_evaluated\.py run_mode=eval", r"250\.0 ± 0\.0 control steps"),
    ("own", r"dog(_built)?\.py num_envs", r"observation/actor +│ gyro +│ SensorReading \+ UniformNoise +│ 3 +│"),
    ("own", r"dog_stands\.py", r"reward +│ alive +│ Alive +│ +│ 1(?:\.0)? +│"),
    ("own", r"dog_reward\.py", r"reward +│ diagonal_pairs +│ DiagonalPairs +│ +│ 0.5 +│"),
    ("own", r"dog_observation\.py", r"actor +│ joint_velocity +│ SmoothJointVelocity \+ UniformNoise +│ 8 +│"),
    ("own", r"dog_command\.py", r"command +│ velocity +│ SlowOrFast +│ 3 +│"),
    ("own", r"dog_curriculum\.py", r"curriculum +│ speed +│ BySurvival from 0, each environment +│"),
    ("own", r"dog_network\.py", r"network +│ SharedNetwork, adapted"),
)
"""By directory of the pages: a pattern of blocks, and a pattern of what each of them prints."""

metric = lambda name, low, high: lambda text: low < json.loads(text)[name] <= high
LEAVES = {
    "several": {
        "logs/process_1.log": r"",
        "output/process_0.out": r"processes\s+│\s+2(?s:.*)iteration 1/1",
        "output/process_1.out": r"",
        "trace/**/*.xplane.pb": None,
        "runs/job_*/process_[01].log": r"",
    },
    "own": {
        "runs/trotting_dog/*/metrics.jsonl": metric("reward/diagonal_pairs", 0, 0.5),
        "runs/calm_dog/*/metrics.jsonl": metric("loss/action_size", -1e-9, float("inf")),
        "runs/two_speed_dog/*/metrics.jsonl": metric("error/velocity/speed_m_s", 0, 2),
        "runs/logged_dog/*/rewards.csv": r"^1,\S+\n$",
        "runs/reporting_dog/*/report.txt": r"^1: reward \S+\nended after 96 steps by its limit\n$",
        "runs/reporting_dog/*/kept/1/document.json": r"",
    },
}
"""By directory of the pages: files that the commands leave, and what is in them; None for files that are not text."""


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """The directories in which the pages' blocks are run, by name."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("clone", *FOLDERS.values())}
    for name, path in made.items():
        make_folder(path, name)
    return made


@pytest.fixture(scope="module")
def outputs():
    """The output of the blocks that have run, by their text."""
    return {}


def needs(outputs, blocks):
    if not {block.text for block in blocks} <= outputs.keys():
        pytest.skip("not all commands were run")


@pytest.mark.long
@pytest.mark.parametrize("block", RUNS, ids=[f"{block.page}: {lines_of(block.text)[0]}" for block in RUNS])
def test_block_runs_as_written(block, directories, outputs):
    output = outputs[block.text] = run(block, directories[block.folder])
    assert "Traceback" not in output
    assert_prints(block, output)


def assert_prints(block, output):
    for folder, command, printed in PRINTS:
        if folder == block.folder and re.search(command, block.text, re.DOTALL) and "--log-dir" not in block.text:
            assert re.search(printed, output), output


# Where all cases are tried, those that train have run by themselves: their files would be there twice.
@pytest.mark.long
@pytest.mark.parametrize("arguments", [x for x in TOGETHER if scale(True, "--prepare" in x)])
def test_programs_of_pages_run_together(arguments, directories, outputs):
    blocks = {block.text.split()[1]: block for block in ALL if re.search(TOGETHER[arguments], block.text)}
    command = " ".join([sys.executable, str(Path(__file__).with_name("together.py")), arguments, *blocks])
    _, *parts = re.split(r"^Program (\S+)\n", finish(start_bash(command, directories["own"], {})), flags=re.MULTILINE)
    printed = dict(zip(parts[::2], parts[1::2], strict=True))
    assert printed.keys() == blocks.keys()
    for name, block in blocks.items():
        outputs[block.text] = printed[name]
        assert ("Traced." in printed[name]) == ("--prepare" in arguments)
        assert_prints(block, printed[name])


@pytest.mark.parametrize(("folder", "command", "printed"), PRINTS)
def test_pattern_of_printed_text_is_about_a_block(folder, command, printed):
    assert any(block.folder == folder and re.search(command, block.text, re.DOTALL) for block in UNCOVERED)


@pytest.mark.parametrize("pattern", COVERED)
def test_block_with_a_test_of_its_own_is_one_of_the_pages(pattern):
    assert len([block for block in ALL if re.search(pattern, block.text)]) == 1


@pytest.mark.long
@pytest.mark.parametrize("folder", LEAVES)
def test_files_that_commands_leave_are_those_of_the_pages(folder, directories, outputs):
    needs(outputs, [block for block in UNCOVERED if block.folder == folder])
    for pattern, expected in LEAVES[folder].items():
        paths = list(directories[folder].glob(pattern))
        assert len(paths) == (2 if "[01]" in pattern else 1), pattern
        for path in paths if expected is not None else ():
            text = path.read_text()
            assert expected(text) if callable(expected) else re.search(expected, text), path


@pytest.mark.long
def test_metrics_and_tables_of_the_distributed_page_are_those_of_its_commands(directories, outputs):
    blocks = [block for block in RUNS if "run_dir=runs/first" in block.text and block.folder == "several"]
    needs(outputs, blocks)
    page, printed = read("DISTRIBUTED_TRAINING.md"), outputs[blocks[0].text]
    metrics = json.loads((directories["several"] / "runs/first/metrics.jsonl").read_text().splitlines()[-1])
    names = [name for row in rows("DISTRIBUTED_TRAINING.md", "Metrics") for name in re.findall(r"`(\w+/\S+)`", row[0])]
    assert len(names) > 12
    assert {name.replace("<i>", "1") for name in names} <= metrics.keys()
    table = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in printed.splitlines() if "│" in line]
    (shown,) = re.findall(r"```\nDistributed setup\n(.*?)```", page, re.DOTALL)
    for line in shown.splitlines()[1:]:
        name, *figures = re.split(r"\s{2,}", line.strip())
        (row,) = [row[1:] for row in table if row[0] == name and len(row) == 3]
        if name != "memory":
            assert [figure for figure in row if figure] == figures, name


@pytest.mark.long
def test_shares_of_devices_are_printed_as_the_page_shows_them(outputs):
    blocks = [block for block in RUNS if "shares.py" in block.text]
    needs(outputs, blocks)
    assert f"```\n{outputs[blocks[0].text]}```" in read("DISTRIBUTED_TRAINING.md")


@pytest.mark.parametrize("page", [path.name for path in PAGES])
def test_block_of_commands_is_run_or_says_why_not(page):
    marked = {block.text: block for block in BLOCKS if block.page == page}
    for language, text in code(page):
        if language in ("sh", "bash") or (language and page in FOLDERS):
            assert marked[text].kind in ("file", "runs") or marked[text].how, text
        if not language:
            assert not re.search(r"^(?:python|pip|make|ksim-train|docker) ", text, re.MULTILINE), "commands without sh"
    for block in marked.values():
        if block.how.startswith("tests/"):
            assert (ROOT / block.how).is_file()
        if block.kind == "not run here" and page in FOLDERS:
            assert block.text.startswith(("kubectl", "torchrun", "python -m ksim.tools.compile"))
