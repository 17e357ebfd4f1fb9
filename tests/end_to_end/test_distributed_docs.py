"""The claims of DISTRIBUTED_TRAINING.md: commands run as written, tables and messages are those of the code.

Its blocks are marked as in pages.py, and run with a point mass. `<!-- runs: walking -->`: with the humanoid.
`<!-- runs: side by side -->`: all commands at once, as on two machines.
"""

import html
import json
import re

import pytest
import yaml

from examples.walking_distributed import HumanoidWalkingDistributedConfig
from ksim.parallel.job import find_job
from ksim.preflight.devices import DistributedSetup
from ksim.task.overrides import parse_overrides
from tests.end_to_end.pages import BLOCK, finish, job_with_free_port, start_bash, write_stand_ins
from tests.messages import describes, strings_of
from tests.support.processes import ROOT, free_port
from tests.support.tasks import point_mass_task

PAGE, CLUSTERS, ALL_MESSAGES = (
    (ROOT / name).read_text() for name in ("DISTRIBUTED_TRAINING.md", "docs/clusters.md", "docs/messages.md")
)
BOTH = BLOCK.findall(PAGE) + BLOCK.findall(CLUSTERS)
FILES = {name: text for kind, name, _, text in BOTH if kind == "file"}
RUNS = [(how, text) for kind, how, _, text in BOTH if kind == "runs"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory with the page's files, and stand-ins for programs in `bin`."""
    path = tmp_path_factory.mktemp("docs")
    for name, text in FILES.items():
        small = text.replace("HumanoidWalkingDistributed", "PointMass")
        if name.endswith(".py"):
            small = small.replace("examples.walking_distributed", "examples.point_mass")
        (path / name).write_text(small)
    write_stand_ins(path / "bin")
    return path


@pytest.fixture(scope="module")
def outputs():
    """The output of the commands that have run."""
    return {}


@pytest.mark.long
@pytest.mark.parametrize(("how", "text"), RUNS, ids=[re.sub(r"\s+", " ", text)[:60] for _, text in RUNS])
def test_commands_of_the_page_run_as_written(how, text, directory, outputs):
    shared = {"DOCS_PORT": str(free_port()), "DOCS_JOB": str(job_with_free_port())}
    commands = text.strip().replace("\\\n", "").splitlines() if how == "side by side" else [text]
    task = "walking" if how == "walking" else "point_mass"
    processes = [start_bash(command, directory, task=task, **shared) for command in commands]
    output = "\n".join(finish(process) for process in processes)
    if "--log-dir" in text:
        output += (directory / "output/process_0.out").read_text()
    outputs[text] = output
    if "ksim.tools" not in text and "shares.py" not in text:
        assert re.search(r"iteration (\d+)/\1\b", output), output
    if how or "ksim.launch" in text:
        assert re.search(r"processes\s+│\s+" + ("1" if how == "walking" else "2"), output), output
    if "num_devices=2" in text:
        assert re.search(r"devices\s+│\s+2 x cpu", output), output


@pytest.mark.long
def test_what_commands_leave_behind_is_what_the_page_says(directory, outputs):
    if len(outputs) < len(RUNS):
        pytest.skip("not all commands were run")
    (evaluated,) = [output for text, output in outputs.items() if "run_mode=eval" in text]
    assert "survived" in evaluated
    lines = (directory / "runs/first/metrics.jsonl").read_text().splitlines()
    metrics = json.loads(lines[-1])
    for name in re.findall(r"`((?:time|episode|rollout)/[\w/<>]+)`", PAGE):
        assert name.replace("<i>", "1") in metrics, name
    assert (directory / "logs/process_1.log").is_file()
    assert (directory / "output/process_1.out").is_file()
    assert (directory / "scaling.png").is_file()
    assert list((directory / "trace").rglob("*.xplane.pb"))
    (job,) = directory.glob("runs/job_*")
    assert {path.name for path in job.glob("*.log")} == {"process_0.log", "process_1.log"}


@pytest.mark.long
def test_printed_figures_are_those_of_the_page(outputs):
    if len(outputs) < len(RUNS):
        pytest.skip("not all commands were run")
    (shares,) = [output for text, output in outputs.items() if "shares.py" in text]
    assert f"```\n{shares}```" in PAGE
    (trained,) = [output for text, output in outputs.items() if "train.py" in text]
    assert "512 environments on each device, 6144 steps per optimizer step" in trained


@pytest.mark.long
def test_setup_table_of_the_quick_start_is_what_the_second_command_prints(outputs):
    printed = next((output for text, output in outputs.items() if "run_dir=runs/first" in text), None)
    if printed is None:
        pytest.skip("the command was not run")
    rows = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in printed.splitlines() if "│" in line]
    (shown,) = re.findall(r"```\nDistributed setup\n(.*?)```", PAGE, re.DOTALL)
    for line in shown.splitlines()[1:]:
        name, *figures = re.split(r"\s{2,}", line.strip())
        (row,) = [row[1:] for row in rows if row[0] == name and len(row) == 3]
        if name != "memory":
            assert [figure for figure in row if figure] == figures, name


def test_every_block_of_the_page_is_a_file_or_run_or_says_why_not():
    assert len(re.findall(r"^```\w", PAGE + CLUSTERS, flags=re.MULTILINE)) == len(BOTH) > 20
    skipped = [text for kind, _, _, text in BOTH if kind == "not run here"]
    assert all(text.startswith(("kubectl", "torchrun")) for text in skipped)


def test_kubernetes_files_start_processes_of_a_job_with_options_that_exist():
    *_, job = documents = list(yaml.safe_load_all(FILES["ksim.yaml"]))
    assert [document["kind"] for document in documents] == ["Service", "ServiceAccount", "Role", "RoleBinding", "Job"]
    service, pod = documents[0], job["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    python, m, module, *overrides = pod["containers"][0]["command"]
    assert (python, m, module) == ("python", "-m", "examples.walking_distributed")
    parse_overrides(HumanoidWalkingDistributedConfig(), overrides).validate()
    shell = yaml.safe_load(FILES["by_hand.yaml"])["command"][-1].replace("$JOB_COMPLETION_INDEX", "1")
    config = parse_overrides(HumanoidWalkingDistributedConfig(), shell.split()[4:])
    joined = find_job(config.coordinator_address, config.num_processes, config.process_id, {})
    assert (joined.num_processes, joined.process_id) == (job["spec"]["completions"], 1)
    assert joined.coordinator_address.startswith(f"{job['metadata']['name']}-0.{pod['subdomain']}:")


def rows(page, heading):
    """The rows of the tables under a heading, as lists of cells, without their headers."""
    section = re.split(r"^#+ ", page.split(f"# {heading}\n")[1], flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines]
    assert cells, heading
    return [[html.unescape(cell.strip().replace("\\|", "|")) for cell in row] for row in cells[1:]]


def test_environment_variables_of_the_page_are_all_that_the_code_reads_of_its_own():
    named = {name for row in rows(CLUSTERS, "Environment variables") for name in re.findall(r"`(KSIM_\w+)`", row[0])}
    read = {name for path in (ROOT / "ksim").rglob("*.py") for name in re.findall(r'"(KSIM_\w+)"', path.read_text())}
    assert named == read


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
def test_table_of_grad_sync_period_has_the_figures_of_the_code():
    options = {"num_envs": 4096, "batch_size": 1024, "rollout_length": 24, "num_passes": 4}
    assert " ".join(f"{name}={value}" for name, value in options.items()) in PAGE.replace("\n", " ")
    for period, mode, syncs, steps, steps_of_batch in rows(PAGE, "grad_sync_period"):
        how = {"grad_sync_period": int(period), "grad_sync_mode": mode}
        hyper = point_mass_task(num_devices=1, **options, **how).hyperparameters()
        setup = DistributedSetup(
            peers=None,
            devices=(None,) * 8,
            engine=None,
            num_envs=4096,
            batch_size=1024,
            num_batches=4,
            rollout_length=24,
            updates_per_iteration=16,
            param_bytes=0,
            learner_bytes=0,
            env_state_bytes_per_device=0,
            rollout_bytes_per_device=0,
            **how,
        )
        assert hyper.syncs_per_iteration == int(syncs)
        assert setup.effective_batch_size == int(steps_of_batch.replace(",", ""))
        assert int(steps) == (16 if mode == "local" else hyper.syncs_per_iteration)


SPEAKING = [
    *(ROOT / "ksim/parallel").glob("*.py"),
    *(ROOT / "ksim/launch").glob("*.py"),
    *(ROOT / "ksim/task").glob("distributed*.py"),
    ROOT / "ksim/preflight/devices.py",
    ROOT / "ksim/preflight/devices.py",
    *(
        ROOT / "ksim" / name
        for name in (
            "config.py",
            "checkpoint/run_dir.py",
            "log/run_log.py",
            "train/loop.py",
        )
    ),
    *(ROOT / "ksim/tools" / name for name in ("scaling.py", "one_device.py", "several_devices.py", "prediction.py")),
    ROOT / "ksim/host/machine.py",
]
ALSO_SPEAKING = [ROOT / "ksim" / name for name in ("checks.py", "task/rl.py", "task/config.py", "train/loop.py")]
"""Files of which the page quotes some messages."""
HEADINGS = ("Options and devices", "Several processes", "Starting by ksim.launch", "The scaling report")
QUOTED = [re.findall(r"`([^`]+)`", row[0])[0].rstrip() for heading in HEADINGS for row in rows(ALL_MESSAGES, heading)]
RULES = [re.findall(r"`([^`]+)`", row[1])[0] for row in rows(PAGE, "Constraints")]
MESSAGES = [message.removesuffix("...") for message in (*RULES, *QUOTED)]


def test_most_common_messages_are_among_all():
    common = [re.findall(r"`([^`]+)`", row[0])[0] for row in rows(PAGE, "Troubleshooting")]
    assert len(common) == 8
    assert all(f"| `{message}` |" in ALL_MESSAGES for message in common)


def test_every_message_that_the_page_quotes_is_one_of_the_code():
    known = [parts for path in (*SPEAKING, *ALSO_SPEAKING) for parts in strings_of(path, raised=False)]
    assert len(MESSAGES) > 60
    stale = [message for message in MESSAGES if not any(describes(message.rstrip(". "), parts) for parts in known)]
    assert stale == [], "\n".join(stale)


def test_every_message_of_the_code_concerned_is_on_the_page():
    missing = []
    for path in SPEAKING:
        for parts in strings_of(path, raised=True):
            is_ours = sum(len(part) for part in parts if part) >= 12 and "must equal number of leaves" not in str(parts)
            if is_ours and not any(describes(message.rstrip(". "), parts) for message in MESSAGES):
                missing.append((path.name, parts))
    assert missing == [], "\n".join(map(str, missing))
