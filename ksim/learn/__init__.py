"""Parts shared by on-policy algorithms: the interface between the host and an algorithm, and the training step.

`learner` has the interface, `AbstractLearner`. `collect` collects rollouts, `statistics` computes their metrics,
`finite` keeps non-finite numbers out of the learner, and `train_step` combines them.
"""
