"""A run's log, and what it leaves to the program whose process it is."""

import inspect
import logging
import warnings
from pathlib import Path

import jax
import pytest

from examples.point_mass import PointMassConfig, PointMassTask
from ksim.cli import launch
from ksim.host.terminal import take_given, warn_user
from ksim.log.run_log import run_log
from tests.support.processes import finish, start
from tests.support.tasks import point_mass_task

logger = logging.getLogger("ksim.train.example")


class Kept(logging.Handler):
    """A handler of the program's."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.fixture
def program():
    """A program that has set up logging: a handler at the root, warnings and worse."""
    take_given()  # by tests before
    root, handler = logging.getLogger(), Kept()
    before = root.level
    root.setLevel(logging.WARNING)
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def log_all():
    for level in ("debug", "info", "warning"):
        getattr(logger, level)("to %s", level)


def words_of(path):
    return [line.rpartition(": ")[2] for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("debug", ["to debug", "to info", "to warning"]),
        ("info", ["to info", "to warning"]),
        ("warning", ["to warning"]),
    ],
)
def test_log_holds_what_log_level_says_and_the_program_gets_what_it_had_asked_for(level, written, tmp_path, program):
    with run_log(level) as log:
        log_all()  # before there is a file
        path = log.open(tmp_path)
        log_all()
    log_all()
    assert words_of(path) == 2 * written
    assert program.messages == 3 * ["to warning"]


@pytest.mark.long
def test_import_leaves_the_root_logger_to_the_program(tmp_path):
    shown = "import logging, ksim.train.loop; print(logging.getLogger().handlers)"
    assert finish(start("-c", shown, cwd=tmp_path)) == (0, "[]\n")


@pytest.mark.parametrize("name", ["", "ksim", "ksim.train", "ksim.train.example"])
def test_level_that_the_program_has_set_anywhere_holds_for_its_own_handlers_alone(name, tmp_path, program):
    chosen = logging.getLogger(name)
    before = chosen.level
    chosen.setLevel(logging.DEBUG)
    try:
        with run_log("warning") as log:
            path = log.open(tmp_path)
            log_all()
        assert chosen.level == logging.DEBUG
    finally:
        chosen.setLevel(before)
    assert program.messages == ["to debug", "to info", "to warning"]
    assert words_of(path) == ["to warning"]


def test_handler_that_the_program_has_given_to_ksim_itself_gets_no_more_than_before(tmp_path):
    handler, own = Kept(), logging.getLogger("ksim")
    own.addHandler(handler)
    own.setLevel(logging.ERROR)
    try:
        with run_log("debug") as log:
            path = log.open(tmp_path)
            log_all()
            logger.error("to error")
        assert (own.level, own.propagate) == (logging.ERROR, True)
        assert own.handlers == [handler]
        assert not handler.filters
    finally:
        own.removeHandler(handler)
        own.setLevel(logging.NOTSET)
    assert handler.messages == ["to error"]
    assert words_of(path) == ["to debug", "to info", "to warning", "to error"]


def test_warnings_go_to_the_log_and_where_the_program_wants_them(tmp_path, monkeypatch):
    seen = []
    hook = lambda message, *_: seen.append(str(message))
    monkeypatch.setattr(warnings, "showwarning", hook)
    monkeypatch.setattr(warnings, "filters", [])
    take_given()
    warn_user("before the run")
    with run_log("info") as log:
        warnings.warn("before the directory", stacklevel=1)
        path = log.open(tmp_path)
        warnings.warn("in the run", DeprecationWarning, stacklevel=1)
    assert warnings.showwarning is hook
    assert words_of(path) == ["before the run", "before the directory", "in the run"]
    assert f"WARNING py.warnings: {__file__}:" in path.read_text()
    assert "DeprecationWarning: in the run" in path.read_text()
    assert seen == ["before the run", "before the directory", "in the run"]
    with run_log("info") as log:
        assert log.open(tmp_path / "next").read_text() == ""  # it is of the run before


def test_log_of_a_second_run_has_the_warnings_that_python_shows_only_once(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: seen.append(str(message)))
    monkeypatch.setattr(warnings, "filters", [("default", None, Warning, None, 0)])
    take_given()
    for name in ("first", "second"):
        with run_log("info") as log:
            path = log.open(tmp_path / name)
            for _ in range(2):
                warn_user("at the same line")
        assert words_of(path) == ["at the same line"]
    assert seen == ["at the same line"]


def test_command_line_shortens_warnings_unless_the_program_shows_them_itself(monkeypatch):
    def give_help():
        with pytest.raises(SystemExit):
            launch(PointMassTask, PointMassConfig(), ["--help"])

    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    hook = lambda *_: None
    with monkeypatch.context() as patch:
        patch.setattr(warnings, "showwarning", hook)
        standard = warnings.formatwarning
        give_help()
        assert warnings.showwarning is hook
        assert warnings.formatwarning is standard
    with warnings.catch_warnings():
        give_help()
    assert warnings.formatwarning("words", UserWarning, "file.py", 1) == "Warning: words\n"


def test_run_warns_of_one_device_at_the_users_line_and_logs_that_and_what_a_debugger_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("ksim.task.distributed.select_devices", lambda *_: jax.devices()[:1])
    task = point_mass_task(max_iterations=1, log_level="debug", run_dir=str(tmp_path / "run"))
    line = inspect.currentframe().f_lineno + 2
    with pytest.warns(UserWarning, match="Only 1 device detected") as given:
        task.run()
    (warned,) = [warning for warning in given if "Only 1 device" in str(warning.message)]
    assert (warned.filename, warned.lineno) == (__file__, line)
    log = (tmp_path / "run" / "process_0.log").read_text()
    assert f"WARNING py.warnings: {__file__}:{line}: UserWarning: Only 1 device detected. Distributed training" in log
    for words in (
        "This is process 0 of 1.",
        "Device 0: ",
        "Layout: SingleDevice, axis None.",
        "Batch: 16 environments, 16 on each device, 8 steps.",
        "Hyperparameters: PPOHyperparameters(gamma=0.99",
        "Placement: state.envs.episode_length: int32[16], SingleDeviceSharding",
        "Program of the rollout: lowered in ",
        "Program of the update: lowered in ",
        "Collectives in the program of the update: none",
    ):
        assert words in log, words
    assert Path(__file__).name in log
