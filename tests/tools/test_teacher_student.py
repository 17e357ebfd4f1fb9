from benchmarks.teacher_student import VELOCITY, YAW_RATE, table
from ksim.evaluate.evaluator import Estimate


def test_table_gives_the_share_of_the_teachers_return():
    figures = lambda mean: {
        "return": Estimate(mean, mean - 1, mean + 1),
        "survival": Estimate(1.0, 0.94, 1.0),
        VELOCITY: Estimate(0.1, 0.09, 0.11),
        YAW_RATE: Estimate(0.2, 0.19, 0.21),
    }
    *_, teacher, student = table({"teacher": figures(50.0), "student": figures(48.0)}).splitlines()
    assert teacher == "| teacher | 50.00 ± 1.00 | 100.0% | 100% (94% to 100%) | 0.100 ± 0.010 | 0.200 ± 0.010 |"
    assert student.startswith("| student | 48.00 ± 1.00 | 96.0% |")
