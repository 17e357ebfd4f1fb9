import dataclasses
import errno
import json
import os
import shlex
import shutil

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from examples.point_mass import PointMassConfig, PointMassTask
from ksim import ConfigError, cli
from ksim.checkpoint.format import list_checkpoints, read_checkpoint, write_checkpoint
from ksim.checkpoint.options import make_config
from ksim.checkpoint.run_dir import locked, newest_run_dir
from ksim.checkpoint.snapshot import kept_options
from ksim.config import as_argument
from ksim.log.jsonl import set_lines_aside
from ksim.task.overrides import parse_overrides
from ksim.train import loop, run, start as module
from ksim.train.start import Start, find_start, prepare_run_dir, print_resumed
from tests.support.checkpoints import newest, saved_learner
from tests.support.damaged_runs import assert_same_metrics, read_lines, without_times
from tests.support.scale import only_in_full
from tests.support.tasks import assert_same_parameters, point_mass_task


def metrics(run_dir):
    return [without_times(line) for line in read_lines(run_dir / "metrics.jsonl")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three iterations, every one of which was saved."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    point_mass_task(num_devices=1, max_iterations=3, save_every_n_iterations=1, run_dir=str(run_dir)).run()
    return run_dir


def copy_of(run_dir, tmp_path):
    return shutil.copytree(run_dir, tmp_path / "run")


def small_config(**options):
    return dataclasses.replace(point_mass_task(num_devices=1).config, **options)


def run_from_command_line(*argv, config=None):
    with pytest.raises(SystemExit) as stopped:
        cli.launch(PointMassTask, config or PointMassConfig(), list(argv))
    return stopped.value.code


def test_resumed_run_is_the_one_that_was_never_stopped(tmp_path, capsys):
    options = {"num_devices": 1, "save_every_n_iterations": 2, "normalize_values": True}
    point_mass_task(**options, max_iterations=5, run_dir=str(tmp_path / "whole")).run()
    point_mass_task(**options, max_iterations=3, run_dir=str(tmp_path / "run")).run()
    assert (
        point_mass_task(**options, max_iterations=5, run_dir=str(tmp_path / "run"), resume="auto").run().exit_code == 0
    )
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    task = point_mass_task(num_devices=1, normalize_values=True)
    assert_same_parameters(*(saved_learner(task, tmp_path / name) for name in ("run", "whole")), rtol=0, atol=0)
    out = capsys.readouterr().out
    assert "changed: max_iterations" in out
    assert "kept: " not in out  # a config from Python is taken as it is
    assert "3 saved, 5 now" in out


@pytest.mark.parametrize(
    ("limits", "reached"),
    [
        ({"max_iterations": 3, "max_env_steps": 1000}, "max_iterations=3. To train further, set it higher"),
        (
            {"max_iterations": 3, "max_env_steps": 384},
            "max_iterations=3, max_env_steps=384. To train further, set both",
        ),
        ({"max_iterations": 4, "max_env_steps": None}, None),
    ],
)
def test_finished_run_says_which_limits_it_has_reached(finished, capsys, limits, reached):
    # 3 iterations of 16 envs * 8 steps = 384.
    task = point_mass_task(num_devices=1, resume=str(finished), **limits)
    print_resumed(task, find_start(task.config, "point_mass"))
    out = " ".join(capsys.readouterr().out.split())
    assert "Resumed" in out
    assert reached in out if reached else "limit reached" not in out


@pytest.mark.long
@only_in_full("the layouts agree in test_invariance.py")
def test_run_goes_on_alike_under_another_layout(tmp_path):
    options = {"num_devices": 2, "resume": "auto"}
    point_mass_task(**options, max_iterations=6, run_dir=str(tmp_path / "whole")).run()
    for until, layout in ((2, "pmap"), (4, "shard_map"), (6, "pmap")):
        point_mass_task(**options, max_iterations=until, run_dir=str(tmp_path / "run"), layout=layout).run()
    assert_same_metrics(tmp_path / "run", tmp_path / "whole", 1e-6)
    learners = [saved_learner(point_mass_task(num_devices=1), tmp_path / name) for name in ("run", "whole")]
    assert_same_parameters(*learners, rtol=1e-6)


def test_state_between_iterations_is_all_there_is_to_a_run(finished):
    checkpoint = read_checkpoint(newest(finished))
    task = point_mass_task(num_devices=1)
    leaves = jax.tree_util.tree_leaves_with_path(task.initial_state())
    assert {jax.tree_util.keystr(path).lstrip(".") for path, _ in leaves} <= checkpoint.arrays.keys()
    assert checkpoint.document["progress"]["env_steps"] == 3 * 16 * 8
    assert checkpoint.document["config"]["num_envs"] == 16
    assert {"jax", "mujoco", "ksim", "python"} <= checkpoint.document["versions"].keys()


def test_auto_starts_where_there_is_nothing_and_goes_on_with_the_newest_run(tmp_path):
    for until in (1, 2):
        assert point_mass_task(num_devices=1, max_iterations=until, resume="auto").run().exit_code == 0
    (only,) = (tmp_path / "runs" / "point_mass_task").iterdir()
    assert [line["iteration"] for line in metrics(only)] == [1, 2]


def test_run_that_was_stopped_before_its_first_checkpoint_starts_again(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "config.yaml").touch()
    (run_dir / "metrics.jsonl").write_text('{"iteration": 1}\n{"iterat')
    point_mass_task(num_devices=1, max_iterations=2, run_dir=str(run_dir), resume="auto").run()
    assert [line["iteration"] for line in metrics(run_dir)] == [1, 2]


def test_run_whose_checkpoints_are_gone_says_so_and_keeps_its_metrics(finished, tmp_path, capsys):
    run_dir = copy_of(finished, tmp_path)
    shutil.rmtree(run_dir / "checkpoints")
    (run_dir / "evaluations.jsonl").write_text('{"iteration": 3}\n')
    kept = {name: (run_dir / name).read_text() for name in ("metrics.jsonl", "evaluations.jsonl")}
    for until in (1, 2):  # the second is of a run that was killed before its first checkpoint
        point_mass_task(num_devices=1, max_iterations=until, run_dir=str(run_dir), resume="auto").run()
        shutil.rmtree(run_dir / "checkpoints")
    words = f"run_dir ({run_dir}) holds no checkpoint to resume, so training starts over. Its metrics, of "
    for said in (capsys.readouterr().out, (run_dir / "process_0.log").read_text()):
        assert f"{words}3 iterations, are in metrics.jsonl.before" in said
        assert f"{words}1 iterations" in said
    assert {name: (run_dir / f"{name}.before").read_text() for name in kept} == kept
    assert [line["iteration"] for line in metrics(run_dir)] == [1, 2]


def test_longer_metrics_take_the_place_of_shorter_ones_that_were_set_aside(tmp_path):
    for num_lines, num_kept in ((1, 1), (3, 3), (2, 3), (0, 3)):
        (tmp_path / "metrics.jsonl").write_text("{}\n" * num_lines)
        assert set_lines_aside(tmp_path) == num_lines
        assert (tmp_path / "metrics.jsonl.before").read_text() == "{}\n" * num_kept


@pytest.mark.parametrize("option", ["resume", "load_weights"])
def test_run_that_began_with_another_and_has_no_checkpoint_does_not_begin_with_nothing(option, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(f"{option}: runs/other\n")
    with pytest.raises(ConfigError, match=rf"had begun with {option}=runs/other .*start again with {option}"):
        point_mass_task(num_devices=1, run_dir=str(tmp_path / "run"), resume="auto").run()


def test_directory_that_cannot_be_cut_back_is_bad_input_that_says_what_to_do(tmp_path, monkeypatch):
    def cut_lines(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("ksim.train.start.cut_lines", cut_lines)
    with pytest.raises(ConfigError, match=r"run_dir .* cannot be written: No space left on device\. Make room"):
        prepare_run_dir(tmp_path, Start(run_dir=tmp_path))


def test_auto_passes_over_a_directory_in_which_no_run_began(tmp_path):
    for name in ("run_000", "run_001"):
        (tmp_path / "runs" / "point_mass_task" / name).mkdir(parents=True)
    (tmp_path / "runs" / "point_mass_task" / "run_000" / "config.yaml").touch()
    assert newest_run_dir("point_mass_task").name == "run_000"


def test_finished_run_has_nothing_left_to_do_and_says_so(finished, tmp_path, monkeypatch, capsys):
    run_dir = copy_of(finished, tmp_path)
    monkeypatch.setattr(loop, "iterate", lambda *_: pytest.fail("it was done"))
    assert point_mass_task(num_devices=1, max_iterations=3, run_dir=str(run_dir), resume="auto").run().exit_code == 0
    assert "max_iterations=3. To train further, set it higher" in capsys.readouterr().out


def test_process_that_writes_nothing_gathers_no_state_that_process_0_does_not_gather(finished, tmp_path, monkeypatch):
    run_dir = copy_of(finished, tmp_path)
    monkeypatch.setattr(run, "open_files", lambda *_, **__: None)
    monkeypatch.setattr(loop, "host_state", lambda *_: pytest.fail("process 0 has it saved, and does not take part"))
    options = {"max_iterations": 3, "eval_at_end": False, "run_dir": str(run_dir), "resume": "auto"}
    assert point_mass_task(num_devices=1, **options).run().exit_code == 0


def test_older_checkpoint_goes_on_in_a_directory_of_its_own_only(finished, tmp_path):
    older = finished / "checkpoints" / "2"
    with pytest.raises(ConfigError, match=r"not the newest checkpoint of its run.*Add run_dir"):
        point_mass_task(num_devices=1, resume=str(older)).run()
    point_mass_task(num_devices=1, max_iterations=4, resume=str(older), run_dir=str(tmp_path / "branch")).run()
    assert [line["iteration"] for line in metrics(tmp_path / "branch")] == [3, 4]
    assert metrics(tmp_path / "branch")[0] == metrics(finished)[2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"actor_sizes": [9]}, r"learner\.params\.actor.*is float32\[8, 2\] there and float32\[9, 2\] here"),
        ({"num_envs": 32}, r"num_envs \(32\) cannot change when a run is resumed.*made with 16"),
        ({"activation": "relu"}, r"activation \(relu\) cannot change when a run is resumed.*made with elu"),
        ({"normalize_values": False}, r"normalize_values \(False\) cannot change when.*made with True"),
        ({"seed": 1}, r"seed \(1\) cannot change"),
        ({"resume": "nowhere"}, r"^resume \('nowhere'\) does not exist. It must be a run's directory"),
        ({"load_weights": "there"}, "Give one of them"),
        ({"run_mode": "eval", "checkpoint": "x"}, "is for run_mode=train"),
    ],
)
def test_what_cannot_be_resumed_is_refused_before_anything_is_written(options, words, finished, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    with pytest.raises(ConfigError, match=words):
        point_mass_task(**{"num_devices": 1, "resume": str(finished), **options}).run()
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def without_permission():
    """Takes from this process what root may read in spite of permissions."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    yield
    if is_root:
        os.seteuid(0)


@pytest.fixture
def closed(finished, tmp_path):
    """Copies of a run that nobody may read: one by its path, one's checkpoints, and the newest of the task."""
    tmp_path.chmod(0o755)
    directories = [tmp_path / name for name in ("run", "open/checkpoints", "runs/point_mass_task/run_000")]
    for path in ("run", "open", "runs/point_mass_task/run_000"):
        shutil.copytree(finished, tmp_path / path)
    for path in directories:
        path.chmod(0)
    yield
    for path in directories:
        path.chmod(0o755)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resume": "run"}, r"resume \('run'\) cannot be read: Permission denied: 'run/.*Set its permissions"),
        ({"resume": "run/checkpoints/3"}, r"resume \('run/checkpoints/3'\) cannot be read: Permission denied"),
        ({"resume": "run/checkpoints/best"}, r"resume \('run/checkpoints/best'\) cannot be read: Permission denied"),
        ({"resume": "open"}, r"resume \('open'\) cannot be read: Permission denied"),
        ({"resume": "auto", "run_dir": "run"}, r"resume \('auto'\) cannot be read: Permission denied: 'run/"),
        ({"resume": "auto"}, r"resume \('auto'\) cannot be read: Permission denied: 'runs/point_mass_task"),
        ({"load_weights": "run"}, r"load_weights \('run'\) cannot be read: Permission denied"),
    ],
)
def test_run_of_somebody_else_that_cannot_be_read_is_bad_input(options, words, closed, without_permission):
    task = point_mass_task(num_devices=1, **options)
    with pytest.raises(ConfigError, match=words):
        find_start(task.config, task.task_name)


def test_rate_that_was_adaptive_and_is_constant_now_is_the_one_that_is_given():
    task = point_mass_task(num_devices=1, learning_rate=2e-3)
    state = task.initial_state()
    came_to = optax.tree.set(state.learner.opt_state, learning_rate=jnp.float32(1e-5))
    state = eqx.tree_at(lambda s: s.learner.opt_state, state, came_to)
    rate_after = lambda changed: optax.tree.get(task.adapt_resumed(state, changed).learner.opt_state, "learning_rate")
    assert rate_after({"desired_kl": (0.01, None)}) == pytest.approx(2e-3)
    assert rate_after({"gamma": (0.9, 0.99)}) == pytest.approx(1e-5)


def test_load_weights_takes_the_policy_and_starts_anew(finished, tmp_path):
    task = point_mass_task(num_devices=1, max_iterations=1, seed=1, num_envs=8, load_weights=str(finished))
    policy = saved_learner(task, finished).params
    starts = []
    make = loop.started_state
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "started_state", lambda *args: starts.append(make(*args)) or starts[-1])
        task.run()
    (state,) = starts
    chex.assert_trees_all_equal(state.learner.params, policy)
    assert state.learner.iteration == 0
    (run_dir,) = (tmp_path / "runs" / "point_mass_task").iterdir()
    assert [line["iteration"] for line in metrics(run_dir)] == [1]


@pytest.mark.long
def test_queue_can_start_with_weights_and_go_on_by_the_same_command(finished, tmp_path):
    options = {"num_devices": 1, "run_dir": str(tmp_path / "new"), "load_weights": str(finished), "resume": "auto"}
    for until in (1, 2):
        assert point_mass_task(**options, max_iterations=until).run().exit_code == 0
    assert [line["iteration"] for line in metrics(tmp_path / "new")] == [1, 2]
    assert point_mass_task(**options, max_iterations=2).run().exit_code == 0


def test_checkpoint_that_appears_while_the_one_before_is_read_is_not_damaged(finished, tmp_path, monkeypatch):
    run_dir = copy_of(finished, tmp_path)
    last = (run_dir / "checkpoints" / "3").rename(tmp_path / "3")
    load = module.load_checkpoint

    def load_and_be_overtaken(*args):
        checkpoint = load(*args)
        last.rename(run_dir / "checkpoints" / "3")
        return checkpoint

    monkeypatch.setattr(module, "load_checkpoint", load_and_be_overtaken)
    with pytest.raises(ConfigError, match="has a newer checkpoint, 3, than the one that was read, 2"):
        point_mass_task(num_devices=1, resume=str(run_dir), max_iterations=5).run()
    assert [path.name for path in list_checkpoints(run_dir / "checkpoints")] == ["1", "2", "3"]
    assert len(metrics(run_dir)) == 3


def test_run_that_another_process_has_gone_on_with_meanwhile_is_left_alone(finished, tmp_path, monkeypatch):
    run_dir = copy_of(finished, tmp_path)
    look = run.find_start

    def look_and_be_overtaken(*args):
        start = look(*args)
        run_dir.joinpath("checkpoints", "3").rename(run_dir / "checkpoints" / "4")
        return start

    monkeypatch.setattr(run, "find_start", look_and_be_overtaken)
    with pytest.raises(ConfigError, match="has a newer checkpoint, 4, than the one that was read, 3"):
        point_mass_task(num_devices=1, resume=str(run_dir), max_iterations=5).run()
    assert [path.name for path in list_checkpoints(run_dir / "checkpoints")] == ["1", "2", "4"]


@pytest.mark.parametrize(
    ("file", "damage"),
    [("arrays.safetensors", lambda path: path.write_bytes(b"")), ("document.json", lambda path: path.unlink())],
)
def test_damaged_newest_checkpoint_is_said_and_the_one_before_is_used(file, damage, finished, tmp_path):
    run_dir = copy_of(finished, tmp_path)
    path = run_dir / "checkpoints" / "3"
    damage(path / file)
    with pytest.raises(ConfigError, match=rf"checkpoints/3 is damaged: {file}"):
        point_mass_task(num_devices=1, resume=str(path), run_dir=str(tmp_path / "new")).run()
    task = point_mass_task(num_devices=1, max_iterations=4, save_every_n_iterations=1, resume=str(run_dir))
    with pytest.warns(UserWarning, match=rf"checkpoints/3 is damaged: {file}.*checkpoints/2\) is used"):
        task.run()
    assert "Checkpoint 3 is damaged" in (run_dir / "process_0.log").read_text()
    assert [line["iteration"] for line in metrics(run_dir)] == [1, 2, 3, 4]
    assert metrics(run_dir)[:3] == metrics(finished)
    assert (run_dir / "damaged" / "3" / "arrays.safetensors").is_file()
    assert read_checkpoint(path).iteration == 3


def test_damaged_checkpoint_that_was_asked_for_is_an_error(finished, tmp_path):
    path = copy_of(finished, tmp_path) / "checkpoints" / "3"
    document = path / "document.json"
    document.write_text(document.read_text().replace('"env_steps": 384', '"env_steps": 385'))
    with pytest.raises(ConfigError, match=r"checkpoints/3 is damaged: document\.json is not what was written"):
        point_mass_task(num_devices=1, resume=str(path), run_dir=str(tmp_path / "new")).run()


def test_two_processes_cannot_go_on_with_one_run(finished, tmp_path):
    run_dir = copy_of(finished, tmp_path)
    with locked(run_dir), pytest.raises(ConfigError, match="another process is training there"):
        point_mass_task(num_devices=1, resume=str(run_dir), max_iterations=4).run()
    assert [line["iteration"] for line in metrics(run_dir)] == [1, 2, 3]


def test_options_in_a_checkpoint_are_data(finished, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "told")
    checkpoint = read_checkpoint(newest(finished))
    document = json.loads(json.dumps(checkpoint.document))
    document["config"] |= {"engine": "${oc.env:SECRET}", "run_dir": "/elsewhere"}
    write_checkpoint(tmp_path / "run" / "checkpoints" / "3", checkpoint.arrays, document)
    with pytest.raises(ConfigError, match=r"Checkpoint .*3 was saved with .* engine .* must be plain text"):
        make_config(PointMassConfig(), [f"resume={tmp_path / 'run'}"], "point_mass_task")


def test_options_that_are_kept_are_those_in_which_the_program_differs_and_nothing_else_was_asked_for(finished):
    checkpoint = read_checkpoint(newest(finished))
    in_program = small_config(rollout_length=4, gamma=0.5, actor_sizes=(8,))
    kept = kept_options(small_config(gamma=0.5, max_iterations=3), in_program, checkpoint)
    assert kept["rollout_length"] == (8, 4)
    assert kept["max_iterations"] == (3, in_program.max_iterations)
    assert not {"gamma", "actor_sizes", "tensorboard"} & kept.keys()


@pytest.mark.long
def test_options_edited_in_the_program_are_listed_with_how_to_take_them_over_and_the_machines_are_taken(
    finished, tmp_path, capsys
):
    run_dir = copy_of(finished, tmp_path)
    edited = small_config(learning_rate=1e-4, desired_kl=0.01, num_envs=32, critic_sizes=[9])
    assert run_from_command_line(f"resume={run_dir}", "max_iterations=4", "num_devices=2", config=edited) == 0
    log = (run_dir / "process_0.log").read_text()
    assert "'kept: learning_rate': '0.003 saved, 0.0001 in this program; to use it, add learning_rate=0.0001'" in log
    assert "'kept: desired_kl': 'None saved, 0.01 in this program; to use it, add desired_kl=0.01'" in log
    for name, there, own in (("num_envs", 16, 32), ("critic_sizes", [8], [9])):
        fix = "cannot change on resume: start a new run for it"
        assert f"'kept: {name}': '{there} saved, {own} in this program; {fix}'" in log
    assert "kept: actor_sizes" not in log
    out = capsys.readouterr().out
    assert "kept: learning_rate" in out
    assert "1 saved, 2 now" in out
    # As it says; what was given is not listed as kept.
    assert run_from_command_line(f"resume={run_dir}", "max_iterations=5", "learning_rate=0.0001", config=edited) == 0
    out = capsys.readouterr().out
    assert "changed: learning_rate" in out
    assert "kept: learning_rate" not in out
    assert [line["iteration"] for line in metrics(run_dir)] == [1, 2, 3, 4, 5]
    assert [line["policy/learning_rate"] for line in metrics(run_dir)[3:]] == pytest.approx([0.003, 0.0001])


def test_option_as_an_argument_is_read_as_it_was():
    options = {"desired_kl": None, "actor_sizes": [64, 32], "video": False, "learning_rate": 1e-5, "engine": "mjx"}
    arguments = [shlex.split(as_argument(name, value))[0] for name, value in options.items()]
    config = parse_overrides(PointMassConfig(desired_kl=0.01), arguments)
    assert {name: getattr(config, name) for name in options} == options


def test_where_a_run_writes_does_not_come_from_its_checkpoint(finished):
    config = make_config(PointMassConfig(), [f"resume={finished}"], "point_mass_task")
    assert config.num_envs == 16
    assert config.run_dir is None
