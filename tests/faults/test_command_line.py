"""Bad input through the command line: exit code 2, one line, and nothing left behind."""

import pytest

from tests.end_to_end.test_commands import run

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


@pytest.mark.parametrize(
    ("arguments", "words"), [*CASES[:2], *(pytest.param(*case, marks=pytest.mark.long) for case in CASES[2:])]
)
def test_command_says_in_one_line_what_is_wrong_and_leaves_nothing(arguments, words, tmp_path):
    done = run("-m", "examples.minimal", *arguments, cwd=tmp_path, check=False)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert words in line
    assert "Traceback" not in done.stdout
    assert list(tmp_path.iterdir()) == []
