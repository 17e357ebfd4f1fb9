"""Parts shared by on-policy algorithms: the interface between the host and an algorithm, and the training step.

`learner` has the interface, `AbstractLearner`, and collects rollouts. `statistics` computes their metrics, `guards`
keeps non-finite numbers out of the learner, and `train_step` combines them. The names exported here are the ones that
an algorithm needs.
"""

from ksim.learn.guards import (
    UpdateState as UpdateState,
    all_finite as all_finite,
    optimizer_step as optimizer_step,
    updated_normalizer as updated_normalizer,
)
from ksim.learn.learner import (
    AbstractLearner as AbstractLearner,
    LearnerInfo as LearnerInfo,
    initial_learner_state as initial_learner_state,
)
from ksim.nn.actor_critic import evaluate_sequences as evaluate_sequences
