from collections.abc import Mapping, Sequence

import numpy as np
from tensorboardX.proto.summary_pb2 import HistogramProto, Summary

def make_histogram(values: np.ndarray, bins: int | str) -> HistogramProto: ...
def hparams(
    hparam_dict: Mapping[str, bool | float | str], metric_dict: Mapping[str, float]
) -> tuple[Summary, Summary, Summary]: ...
def custom_scalars(layout: Mapping[str, Mapping[str, Sequence[str | Sequence[str]]]]) -> Summary: ...
