import pytest

from ksim.launch.__main__ import main
from ksim.launch.options import parse_options
from tests.support.launched_programs import write_program

NODES = ["--nnodes", "2", "--node-rank", "1", "--coordinator-address", "h:1"]


def assert_refused(arguments, words, capsys):
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("Error: ")
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nnodes", "two"], ["--nnodes (two)", "whole number, at least 1"]),
        (["--nnodes=0"], ["--nnodes (0)", "at least 1"]),
        (["--nproc-per-node", "-1"], ["--nproc-per-node (-1)", "at least 1"]),
        (["--nproc-per-node", "--grace-s"], ["--nproc-per-node", "expected one argument", "--help"]),
        (["--nnodes", "2", "--coordinator-address", "h:1"], ["--nnodes 2 needs --node-rank", "--node-rank 0"]),
        (["--nnodes", "2", "--node-rank", "0"], ["needs --coordinator-address", "10.0.0.1:8476"]),
        ([*NODES, "--node-rank", "2"], ["--node-rank (2)", "below --nnodes (2)", "from 0 to 1"]),
        (["--node-rank", "1"], ["--node-rank (1)", "below --nnodes (1)"]),
        (["--node-rank", "first"], ["--node-rank (first)", "whole number"]),
        ([*NODES, "--coordinator-address", "host"], ["--coordinator-address (host)", "HOST:PORT"]),
        ([*NODES, "--coordinator-address", ":80"], ["--coordinator-address (:80)", "HOST:PORT"]),
        ([*NODES, "--coordinator-address", "http://h:80"], ["(http://h:80)", "HOST:PORT"]),
        ([*NODES, "--coordinator-address", "h:65536"], ["(h:65536)", "1 to 65535"]),
        (["--grace-s", "soon"], ["--grace-s (soon)", "number of seconds"]),
        (["--grace-s", "-1"], ["--grace-s (-1)", "at least 0"]),
        (["--grace-s", "1e7"], ["--grace-s (1e7)", "at most 1000000"]),
        (["--grace-s", "inf"], ["--grace-s (inf)", "number of seconds"]),
        (["--max-restarts", "-1"], ["--max-restarts (-1)", "whole number, at least 0"]),
        ([*NODES, "--max-restarts", "1"], ["--max-restarts (1)", "--nnodes 2", "resume=auto"]),
        (["--max-restarts", "1", "--min-nproc", "0"], ["--min-nproc (0)", "at least 1"]),
        (["--max-restarts", "1", "--min-nproc", "2"], ["--min-nproc (2)", "at most --nproc-per-node (1)"]),
        (["--min-nproc", "1"], ["--min-nproc (1) needs --max-restarts", "--max-restarts 3"]),
        (["--max_restart=1"], ["no option '--max_restart'", "'--max-restarts'"]),
        (["--log-dir=a\nb"], ["Argument '--log-dir=a\\nb' of --log-dir must be one line of text in UTF-8"]),
        (["--grace-s", "\udcff"], ["Argument '\\udcff' of --grace-s must be one line of text"]),
        (["--log-dir="], ["--log-dir ('') must be the name of a directory"]),
        (["--coordinator-address", "a..b:1"], ["--coordinator-address (a..b:1)", "HOST:PORT"]),
        (["--log-dir", "program.py"], ["--log-dir (program.py)", "no directory", "Choose another"]),
        (["--log-dir", "program.py/logs"], ["--log-dir (program.py/logs)", "no directory"]),
        (["--nproc", "2"], ["no option '--nproc'", "'--nproc-per-node'"]),
        (["--nprocs=2"], ["no option '--nprocs'", "Here it is --nproc-per-node N."]),
        (["--master_addr", "node0"], ["no option '--master_addr'", "Here it is --coordinator-address HOST:PORT"]),
        (["--master_port=1"], ["Here it is --coordinator-address HOST:PORT"]),
        (["--machine_rank=1"], ["Here it is --node-rank N."]),
        (["--gpu-ids", "0,1"], ["no option '--gpu-ids'", "CUDA_VISIBLE_DEVICES=0,1", "devices=cpu"]),
        (["--distributed"], ["no option '--distributed'", "it needs none"]),
    ],
)
def test_bad_option_exits_with_2_and_says_what_is_wrong_and_starts_nothing(arguments, words, capsys, tmp_path):
    assert_refused([*arguments, write_program("tell('started')")], words, capsys)
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ([], ["must be a program", "-m MODULE or FILE"]),
        (["-m"], ["must be a program"]),
        (["missing.py"], ["no file 'missing.py'"]),
        ([300 * "x"], ["no file 'xxx"]),
        (["examples.walking"], ["no file 'examples.walking'", "-m examples.walking"]),
        (["num_envs=64", "-m", "x"], ["no file 'num_envs=64'", "before its own arguments"]),
    ],
)
def test_missing_program_exits_with_2_and_says_how_to_name_one(program, words, capsys):
    assert_refused(["--nproc-per-node", "2", *program], words, capsys)


def test_underscores_in_names_of_options_are_dashes_as_for_torchrun_and_those_of_values_are_kept():
    given = ["--nproc_per_node=2", "--nnodes", "2", "--node_rank", "1", "--coordinator_address=a_b:1"]
    given += ["--log_dir", "a_b"]
    options = parse_options([*given, "--grace_s=5", "-m", "a_b", "--nproc_per_node=9"])
    assert (options.nproc_per_node, options.nnodes, options.node_rank, options.grace_s) == (2, 2, 1, 5.0)
    assert (options.coordinator_address, options.log_dir.name) == ("a_b:1", "a_b")
    assert options.program == ("-m", "a_b", "--nproc_per_node=9")
    restarted = parse_options(["--nproc_per_node=2", "--max_restarts=1", "--min_nproc=1", "-m", "a_b"])
    assert (restarted.max_restarts, restarted.min_nproc) == (1, 1)


def test_everything_after_the_program_is_its_own():
    arguments = ["--nnodes", "7", "--", "-m", "--help", "num_envs=64"]
    assert parse_options(["--nproc-per-node=2", "-m", "a.b", *arguments]).program == ("-m", "a.b", *arguments)
    write_program("", "task.py")
    assert parse_options(["--grace-s", "1", "task.py", *arguments]).program == ("task.py", *arguments)


def test_one_node_needs_no_address_and_gets_a_free_port_of_this_machine():
    options = parse_options(["-m", "a"])
    host, port = options.coordinator_address.split(":")
    assert host == "127.0.0.1"
    assert 0 < int(port) < 65536
    assert (options.nnodes, options.nproc_per_node, options.node_rank, options.grace_s) == (1, 1, 0, 10.0)


def test_process_ids_count_over_all_nodes():
    options = parse_options([*NODES, "--nproc-per-node", "4", "-m", "a"])
    assert (options.num_processes, options.first_process_id) == (8, 4)


def test_address_may_be_of_ipv6():
    assert parse_options([*NODES, "--coordinator-address", "[::1]:80", "-m", "a"]).coordinator_address == "[::1]:80"


def test_help_lists_every_option_and_exits_with_0(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    names = "--nnodes --nproc-per-node --node-rank --coordinator-address --log-dir --grace-s --max-restarts --min-nproc"
    for name in (*names.split(), "-m MODULE"):
        assert name in out
