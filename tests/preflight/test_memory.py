import dataclasses
import re

import pytest

from ksim import ConfigError
from ksim.preflight import memory
from tests.support.tasks import CartPoleConfig, CartPoleTask

LARGE = CartPoleConfig(num_devices=2, num_envs=64, rollout_length=50, actor_sizes=[8], critic_sizes=[8])


def refusal(config):
    with pytest.raises(ConfigError) as refused:
        CartPoleTask(config).check()
    return str(refused.value)


@pytest.mark.parametrize("option", ["num_envs", "rollout_length"])
def test_batch_that_cannot_be_held_is_refused_with_the_most_that_can(option, monkeypatch):
    monkeypatch.setattr(memory, "most_memory", lambda *_: 150_000)
    most = int(re.search(rf"{option} to at most (\d+)", refusal(LARGE))[1])
    CartPoleTask(dataclasses.replace(LARGE, **{option: most})).check()
    step = 8 if option == "num_envs" else 1  # of 4 minibatches on 2 devices
    assert f"{option} ({most + step})" in refusal(dataclasses.replace(LARGE, **{option: most + step}))


def test_evaluation_that_cannot_be_held_is_refused_with_the_most_that_can(monkeypatch):
    monkeypatch.setattr(memory, "most_memory", lambda *_: None)
    monkeypatch.setattr(memory, "_meminfo", lambda *_: 10_000)
    most = int(re.search(r"at most (\d+)", refusal(dataclasses.replace(LARGE, eval_num_envs=1000)))[1])
    CartPoleTask(dataclasses.replace(LARGE, eval_num_envs=most)).check()
    assert "eval_num_envs" in refusal(dataclasses.replace(LARGE, eval_num_envs=most + 1))


def test_networks_that_cannot_be_held_are_named(monkeypatch):
    monkeypatch.setattr(memory, "most_memory", lambda *_: 1000)
    assert "actor_sizes ([8]), critic_sizes ([8]), memory_size (8)" in refusal(dataclasses.replace(LARGE, model="gru"))


def test_machine_that_does_not_say_its_memory_is_trusted(monkeypatch):
    monkeypatch.setattr(memory, "most_memory", lambda *_: None)
    monkeypatch.setattr(memory, "_meminfo", lambda *_: None)
    CartPoleTask(LARGE).check()
