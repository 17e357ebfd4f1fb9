"""Bad input through the command line: exit code 2, one line, and nothing left behind."""

import pytest

import ksim
from examples.minimal import CrawlerTask
from ksim import cli
from tests.support.processes import exit_code, run

CASES = [
    (["num_env=4"], "There is no option 'num_env'. Did you mean 'num_envs'"),
    (["num_envs=1000000000000"], "Number of environments (1000000000000) must be at most"),
    (["actor_sizes=[1000000000]"], "actor_sizes ([1000000000])"),
    (["actor_sizes=!!python/object/apply:os.system [touch here]"], "Option actor_sizes ("),
    (
        ["run_mode=view", "checkpoint=nowhere"],
        "checkpoint ('nowhere') does not exist. It must be a run's directory",
    ),
    (["run_mode=eval", "checkpoint=" + "x" * 5000], "checkpoint ('xxx"),
    (["run_dir=/dev/null/runs"], "run_dir (/dev/null/runs) cannot be created: /dev/null is not a directory"),
]


def assert_refused(code, out, err, words, directory):
    assert code == 2, err
    (line,) = err.splitlines()
    assert line.startswith("Error: ")
    assert words in line
    assert "Traceback" not in out
    assert list(directory.iterdir()) == []


def test_command_in_a_process_of_its_own_says_in_one_line_what_is_wrong_and_leaves_nothing(tmp_path):
    arguments, words = CASES[0]
    done = run("-m", "examples.minimal", *arguments, cwd=tmp_path, check=False)
    assert_refused(done.returncode, done.stdout, done.stderr, words, tmp_path)


@pytest.mark.parametrize(("arguments", "words"), CASES[1:])
def test_command_says_in_one_line_what_is_wrong_and_leaves_nothing(arguments, words, tmp_path, capsys):
    code = exit_code(cli.launch, CrawlerTask, ksim.PPOConfig(), arguments)
    assert_refused(code, *capsys.readouterr(), words, tmp_path)
