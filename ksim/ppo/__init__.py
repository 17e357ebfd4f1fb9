"""Proximal policy optimization as pure functions, in the order of one iteration.

`advantages` of a rollout, `minibatches` of its envs, `losses` of a minibatch, `update` of the parameters, and
`train_step`, which puts them in order. `statistics` are the figures that are logged.
"""
