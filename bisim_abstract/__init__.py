"""Turn a finite Gymnasium environment into a smaller one, with a proof.

In the order in which one meets them:

- `abstract_env`, all of what follows in one call.
- `TabularMDP`, the immutable model that everything reads; `bisim_abstract.wrappers.extract_mdp`
  makes one of an environment, `read_model` of a file, `estimate_mdp` of experience.
- `certify`, bounds on the bisimulation metric of all pairs of states and the clusters that follow,
  as a `Certificate` (with its `Verdict`, `Frontier` and `ProvenValue`); `verify` checks one by
  code that did not make it.
- `aggregate`, the model over clusters; `lift_policy`, its policies on the states; `value_loss`,
  what these lose; `prove_value`, what planning on any partition keeps, proven.
  `bisim_abstract.wrappers.AbstractedEnv` is all of this as an environment for agents.
- `compare_abstractions`, what planning on clusters loses, beside uncertified clusterings;
  `evaluate_embedding`, how well an embedding imitates the metric (learned ones live in
  `bisim_abstract.encoders`); `QLearning` and `learning_curve`, a yardstick for agents.
- `bisimulation_classes`, which states are exactly alike; `bisimulation_metric`, how alike all
  others are; `value_iteration` and `evaluate_policy`, certified values.
- `write_report`, all of it on one page that opens offline; `state_map`, where to draw states;
  pictures are methods of a certificate, and `plot_curves`, `plot_losses`, `plot_embedding`.

The parts that these are made of (proposals, blocks, features, retrieval, transport, generators of
models) are in `bisim_abstract.parts`, all errors in `bisim_abstract.errors`.

Importing this package registers `bisim_abstract/RoomsGrid-v0` with Gymnasium and loads
neither torch, faiss, numba nor matplotlib.

Example:
    >>> from bisim_abstract import bisimulation_metric
    >>> from bisim_abstract.parts import sparse_mdp
    >>> metric = bisimulation_metric(sparse_mdp(20, seed=0), 0.9)
    >>> metric.is_converged
    True
"""

from bisim_abstract._register import register_envs
from bisim_abstract._version import __version__ as __version__
from bisim_abstract.abstract import abstract_env
from bisim_abstract.aggregate import Aggregation, ValueLoss, aggregate, lift_policy, value_loss
from bisim_abstract.bisimulation import BisimulationClasses, bisimulation_classes
from bisim_abstract.certificate import Certificate
from bisim_abstract.certify import certify
from bisim_abstract.comparison import AbstractionLoss, compare_abstractions
from bisim_abstract.errors import BisimError, InvalidArgumentError, NotCertifiedError
from bisim_abstract.estimation import estimate_mdp
from bisim_abstract.evaluation import EmbeddingQuality, evaluate_embedding
from bisim_abstract.files import read_model
from bisim_abstract.frontier import Frontier
from bisim_abstract.learning import Curve, QLearning, learning_curve
from bisim_abstract.mdp import TabularMDP
from bisim_abstract.metric import MetricBounds, bisimulation_metric
from bisim_abstract.planning import Values, evaluate_policy, value_iteration
from bisim_abstract.plots import plot_curves, plot_embedding, plot_losses
from bisim_abstract.ray_backend import RayBackend
from bisim_abstract.report import write_report
from bisim_abstract.statemap import StateMap, state_map
from bisim_abstract.value import ProvenValue
from bisim_abstract.value_proof import prove_value
from bisim_abstract.verdict import Verdict
from bisim_abstract.verify import Verification, verify

register_envs()
del register_envs

__all__ = [
    "AbstractionLoss",
    "Aggregation",
    "BisimError",
    "BisimulationClasses",
    "Certificate",
    "Curve",
    "EmbeddingQuality",
    "Frontier",
    "InvalidArgumentError",
    "MetricBounds",
    "NotCertifiedError",
    "ProvenValue",
    "QLearning",
    "RayBackend",
    "StateMap",
    "TabularMDP",
    "ValueLoss",
    "Values",
    "Verdict",
    "Verification",
    "abstract_env",
    "aggregate",
    "bisimulation_classes",
    "bisimulation_metric",
    "certify",
    "compare_abstractions",
    "estimate_mdp",
    "evaluate_embedding",
    "evaluate_policy",
    "learning_curve",
    "lift_policy",
    "plot_curves",
    "plot_embedding",
    "plot_losses",
    "prove_value",
    "read_model",
    "state_map",
    "value_iteration",
    "value_loss",
    "verify",
    "write_report",
]
