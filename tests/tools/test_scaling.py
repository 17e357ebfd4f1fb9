import json
from dataclasses import asdict

import pytest

from ksim import ConfigError
from ksim.parallel.job import Job
from ksim.tools import scaling
from ksim.tools.measure import resized
from ksim.tools.prediction import OneDevice, Setting, Size
from ksim.tools.scaling import find_task, main, pick_counts

GOOD = asdict(OneDevice("Task", "cpu", 4, 1000, [Size(8, [1.0], [0.5])], [Setting("accumulate", 1, 4, [(1000, 4)])]))
LINK = ["--latency-us", "20", "--bandwidth-gbytes-per-s", "25"]
SMALL = ["num_envs=16", "rollout_length=4", "num_batches=2", "num_passes=1", "actor_sizes=[4]", "critic_sizes=[4]"]


@pytest.mark.long
def test_report_has_strong_and_weak_scaling_as_table_figures_and_plot(tmp_path, capsys):
    argv = ["examples.point_mass", *SMALL, "--devices", "2", "--repeats", "2", "--iterations", "1", "--out", "out/two"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "they share: such figures prove that the program is right on several devices, not that it is fast" in out
    record = json.loads((tmp_path / "out" / "two.json").read_text())
    sizes = [(m["kind"], m["num_devices"], m["num_envs"]) for m in record["measurements"]]
    assert sizes == [("strong", 1, 16), ("strong", 2, 16), ("weak", 1, 16), ("weak", 2, 32)]
    for m in record["measurements"]:
        assert len(m["env_steps_per_s"]) == len(m["efficiency"]) == 2
        assert min(m["env_steps_per_s"]) > 0
        assert all(0 <= share < 1 for share in m["collective_share"])
    assert record["measurements"][0]["efficiency"] == [1, 1]
    table = (tmp_path / "out" / "two.md").read_text()
    assert table.count("| strong |") == table.count("| weak |") == 2
    assert table in out.replace("Compiling", "") or "| weak | 2 | 32 |" in out
    assert (tmp_path / "out" / "two.png").read_bytes().startswith(b"\x89PNG")


def test_weak_scaling_keeps_a_given_batch_size_per_device():
    config = scaling.parse_overrides(find_task("examples.point_mass", None).get_config_class()(), ["batch_size=8"])
    assert resized(config, 4, 4 * config.num_envs).batch_size == 32
    assert resized(config, 4, config.num_envs).batch_size == 8


def test_all_powers_of_two_and_all_devices_are_measured_by_default():
    assert pick_counts(None, "all") == [1, 2, 4, 8]
    assert pick_counts(None, [0, 1, 2]) == [1, 2, 3]
    assert pick_counts([4, 2], "all") == [1, 2, 4]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["examples.nowhere"], "There is no module 'examples.nowhere'"),
        (["examples.minimal"], "examples.minimal must hold one DistributedRLTask, but holds none"),
        (["examples.point_mass", "--task", "PointMas"], "no distributed task 'PointMas'. Did you mean 'PointMassTask'"),
        (["examples.point_mass", "num_devices=2"], "num_devices is set by the measurement"),
        (["examples.point_mass", "num_env=2"], "There is no option 'num_env'"),
        (["examples.point_mass", "--repeats", "0"], "--repeats (0)"),
        (["examples.point_mass", "--devices", "99"], "Number of devices (99) must be at most"),
        (["examples.point_mass", "--devices", "0"], "--devices (0) must be positive"),
        (["examples.point_mass", "num_envs=12", "--devices", "8"], "(12) must be divisible by number of devices (8)"),
        (["examples.point_mass", "--predict"], "--predict needs --latency-us and --bandwidth-gbytes-per-s as well"),
        (["examples.point_mass", "--predict", "--latency-us", "1"], "needs --bandwidth-gbytes-per-s as well"),
        (["examples.point_mass", *LINK], "Add --predict"),
        (["good.json"], "Add --predict"),
        (["examples.point_mass", "--all-reduce", "ring"], "Add --predict"),
        (["good.json", "--predict", *LINK[:3], "0"], "--bandwidth-gbytes-per-s (0.0) must be positive"),
        (["good.json", "--predict", *LINK[:3], "nan"], "--bandwidth-gbytes-per-s (nan) must be positive"),
        (["good.json", "--predict", "--latency-us=-3", *LINK[2:]], "--latency-us (-3.0) must be zero or more"),
        (["good.json", "--predict", *LINK, "--devices", "0"], "--devices (0) must be positive numbers of devices"),
        (["good.json", "num_envs=3", "--predict", *LINK], "good.json is already measured. Leave out num_envs=3"),
        (["none.json", "--predict", *LINK], "none.json holds no measurement of one device (FileNotFoundError"),
        (["text.json", "--predict", *LINK], "text.json holds no measurement of one device (JSONDecodeError"),
        (["empty.json", "--predict", *LINK], "empty.json holds no measurement of one device (KeyError: 'one_device')"),
        (["negative.json", "--predict", *LINK], "rollout_s (-1.0) must be zero or more"),
    ],
)
def test_input_that_cannot_work_exits_with_2_and_writes_nothing(argv, message, tmp_path, capsys):
    negative = {**GOOD, "sizes": [{"num_envs": 8, "rollout_s": [-1.0], "update_s": [0.5]}]}
    files = {"good": {"one_device": GOOD}, "negative": {"one_device": negative}, "empty": {}}
    texts = {name: json.dumps(record) for name, record in files.items()} | {"text": "no json"}
    for name, text in texts.items():
        (tmp_path / f"{name}.json").write_text(text)
    assert main(argv) == 2
    out = capsys.readouterr().out
    assert message in out
    assert "Compiling" not in out
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.json" for name in texts}


def test_under_a_launcher_it_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(scaling, "find_job", lambda: Job("Slurm"))
    assert main(["examples.point_mass"]) == 2
    assert "runs in one process" in capsys.readouterr().out


def test_task_of_a_module_is_found_by_name():
    assert find_task("examples.walking_distributed", "HumanoidWalkingDistributedTask").__name__.startswith("Humanoid")
    with pytest.raises(ConfigError, match="must hold one"):
        find_task("ksim", None)
