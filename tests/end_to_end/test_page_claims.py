"""Tables, options, variables and files of the pages are those of the code."""

import dataclasses
import re

import jax.numpy as jnp
import pytest
import yaml

import ksim
from examples.point_mass import PointMass
from examples.walking_distributed import HumanoidWalkingDistributedConfig
from ksim.host.signals import OUT_OF_TIME_EXIT_CODE, STOPPING
from ksim.parallel.job import find_job
from ksim.preflight.devices import DistributedSetup
from ksim.task.overrides import parse_overrides
from ksim.train.watchdog import HANG_EXIT_CODE
from tests.end_to_end.pages import BLOCKS, code, read, rows
from tests.support.processes import ROOT
from tests.support.tasks import point_mass_task

RELIABILITY = read("reliability.md")


def test_kubernetes_files_start_processes_of_a_job_with_options_that_exist():
    files = {block.how: block.text for block in BLOCKS if block.page == "clusters.md"}
    *_, job = documents = list(yaml.safe_load_all(files["ksim.yaml"]))
    assert [document["kind"] for document in documents] == ["Service", "ServiceAccount", "Role", "RoleBinding", "Job"]
    service, pod = documents[0], job["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    python, m, module, *overrides = pod["containers"][0]["command"]
    assert (python, m, module) == ("python", "-m", "examples.walking_distributed")
    parse_overrides(HumanoidWalkingDistributedConfig(), overrides).validate()
    shell = yaml.safe_load(files["by_hand.yaml"])["command"][-1].replace("$JOB_COMPLETION_INDEX", "1")
    config = parse_overrides(HumanoidWalkingDistributedConfig(), shell.split()[4:])
    joined = find_job(config.coordinator_address, config.num_processes, config.process_id, {})
    assert (joined.num_processes, joined.process_id) == (job["spec"]["completions"], 1)
    assert joined.coordinator_address.startswith(f"{job['metadata']['name']}-0.{pod['subdomain']}:")


def test_environment_variables_of_the_page_are_all_that_the_code_reads_of_its_own():
    named = {
        name for row in rows("clusters.md", "Environment variables") for name in re.findall(r"`(KSIM_\w+)`", row[0])
    }
    in_code = {name for path in (ROOT / "ksim").rglob("*.py") for name in re.findall(r'"(KSIM_\w+)"', path.read_text())}
    assert named == in_code


def test_table_of_grad_sync_period_has_the_figures_of_the_code():
    options = {"num_envs": 4096, "batch_size": 1024, "rollout_length": 24, "num_passes": 4}
    assert " ".join(f"{name}={value}" for name, value in options.items()) in read("DISTRIBUTED_TRAINING.md").replace(
        "\n", " "
    )
    for period, mode, syncs, steps, steps_of_batch in rows("DISTRIBUTED_TRAINING.md", "grad_sync_period"):
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


def test_options_of_reliability_have_the_defaults_that_the_page_gives():
    config = ksim.DistributedPPOConfig()
    found = re.findall(r"^\| `(\w+)` \| ([\w.]+) \|", RELIABILITY, flags=re.MULTILINE)
    assert len(found) == 6
    for name, default in found:
        value = getattr(config, name)
        assert default == ("null" if value is None else f"{value:g}")
    for name in set(re.findall(r"`(\w+_\w+)=", RELIABILITY)):
        assert name in {field.name for field in dataclasses.fields(config)}


def test_exit_codes_are_those_of_the_page():
    for number in STOPPING:
        assert number.name in RELIABILITY
        assert str(128 + number) in RELIABILITY
    stopping = RELIABILITY.split("## Stopping")[1].split("##")[0]
    codes = re.findall(r"\| (\d+) \|$", stopping, flags=re.MULTILINE)
    assert {str(HANG_EXIT_CODE), str(OUT_OF_TIME_EXIT_CODE), "0", "1", "2"} == set(codes)


@pytest.mark.long
def test_programs_of_reliability_run(tmp_path, monkeypatch, capsys):
    step = PointMass.step

    def sometimes_nan(self, state, action):
        stepped = step(self, state, action)
        reward = jnp.where(stepped.inner.position > 0.9, jnp.nan, stepped.reward)
        return dataclasses.replace(stepped, reward=reward)

    monkeypatch.setattr(PointMass, "step", sometimes_nan)
    point_mass_task(num_devices=1, max_iterations=2, run_dir="runs/mine", actor_sizes=[32], critic_sizes=[32]).run()
    blocks = [text for language, text in code("reliability.md") if language == "python"]
    assert len(blocks) == 3
    for text in blocks:
        exec(compile(text, "docs/reliability.md", "exec"), {})
    (line,) = capsys.readouterr().out.splitlines()[-1:]
    assert line.startswith("['rollout/not_finite'") or line.startswith("[] ")
