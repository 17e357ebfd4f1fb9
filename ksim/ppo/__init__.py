"""Proximal policy optimization as pure functions.

`ppo` has the learner, in the order of one iteration, `losses` the advantages and the loss of a minibatch, and
`minibatches` the loop over minibatches with gradients averaged over devices. `symmetry`, `amp` and `distillation`
extend it; `reppo` is another algorithm on the same minibatches.
"""
