"""What any on-policy algorithm shares: the seam between the host and an algorithm, and the training step made of it.

`learner` has the seam, `AbstractLearner`. `collect` makes rollouts, `statistics` has the figures of one, `finite` keeps
numbers that are not finite out of the learner, and `train_step` puts them in order.
"""
