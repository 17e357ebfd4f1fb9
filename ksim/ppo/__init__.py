"""Proximal policy optimization as pure functions, in the order of one iteration.

`advantages` of a rollout, `minibatches` of its envs, `losses` of a minibatch, `update` of the parameters with
`gradient_sync` over devices, and `learner`, which puts them in order.
"""
