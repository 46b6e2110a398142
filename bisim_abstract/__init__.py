"""Turn a finite Gymnasium environment into a smaller one, with a proof.

In reading order:

- `abstract_env`, all of what follows in one call.
- `TabularMDP`, the immutable model that everything reads; `read_model`, `estimate_mdp` and
  the generators make one, and so does `bisim_abstract.wrappers.extract_mdp`.
- `bisimulation_classes`, which states are exactly alike.
- `bisimulation_metric`, how alike all others are: certified bounds on every pair.
- `certify`, bounds on all pairs at a cost that grows with the model and not with the number of
  pairs, as a `Certificate`; `verify` checks one by code that did not make it. `single_build`
  and `certify(..., scope="covered")` are the paper's algorithms over retrieved pairs.
- `propose_classes`, `propose_components`, `split_labels` and `repair_labels`, partitions worth
  trying;
  `value_features`, functions whose differences are lower bounds on the metric.
- `landmark_mds`, `retrieve_pairs`, `distortion` and `recall_miss`, which pairs are worth a look;
  `evaluate_embedding` says how well an embedding imitates the metric. Learned ones live in
  `bisim_abstract.encoders`.
- `prove_value`, what planning on a partition keeps and can lose, proven, as a `ProvenValue`
  (every certificate has one); `value_bracket`, what the partition proves by itself.
- `aggregate`, the model over clusters; `lift_policy`, its policies on the states;
  `value_loss`, what these lose; `cluster_by_rewards` and its siblings, clusterings to compare with.
  `bisim_abstract.wrappers.AbstractedEnv` is all of this as an environment for agents.
- `compare_abstractions`, what planning on clusters loses, beside uncertified clusterings;
  `QLearning` and `learning_curve`, a yardstick for agents; `state_map`, where to draw states;
  `write_report`, all of it on one page that opens offline.
- `plot_frontier`, `plot_profile`, `plot_widths`, `plot_dendrogram` and `plot_map`, pictures of
  a certificate;
  `plot_embedding`, `plot_curves` and `plot_losses`, of the rest. They need matplotlib.
- `value_iteration` and `evaluate_policy`, certified values.
- `solve_transport`, the small exact transport solver underneath.

Importing this package registers `bisim_abstract/RoomsGrid-v0` with Gymnasium and loads
neither torch, faiss, numba nor matplotlib.

Example:
    >>> from bisim_abstract import bisimulation_metric, sparse_mdp
    >>> metric = bisimulation_metric(sparse_mdp(20, seed=0), 0.9)
    >>> metric.is_converged
    True
"""

from bisim_abstract._register import register_envs
from bisim_abstract._version import __version__ as __version__
from bisim_abstract.abstract import abstract_env
from bisim_abstract.aggregate import (
    Aggregation,
    ValueLoss,
    aggregate,
    lift_policy,
    random_values,
    value_loss,
)
from bisim_abstract.bisimulation import BisimulationClasses, bisimulation_classes
from bisim_abstract.blocks import BlockLevel, BlockModel, build_blocks
from bisim_abstract.brackets import value_bracket
from bisim_abstract.certificate import Certificate
from bisim_abstract.certify import certify, single_build
from bisim_abstract.clustering import (
    cluster_by_arm,
    cluster_by_embedding,
    cluster_by_metric,
    cluster_by_rewards,
)
from bisim_abstract.comparison import (
    AbstractionLoss,
    compare_abstractions,
    compare_clusterings,
)
from bisim_abstract.embedding import distortion, landmark_mds
from bisim_abstract.errors import (
    BisimError,
    ExtractionError,
    FileFormatError,
    InvalidArgumentError,
    InvalidMDPError,
    MemoryLimitError,
    MissingDependency,
    NotCertifiedError,
    StateLimitError,
    StochasticEnvError,
    VerificationError,
)
from bisim_abstract.estimation import Estimate, estimate_mdp
from bisim_abstract.evaluation import EmbeddingQuality, evaluate_embedding
from bisim_abstract.features import ValueFeatures, Witness, make_witness, value_features
from bisim_abstract.files import read_bridge, read_model
from bisim_abstract.frontier import Frontier, FrontierPoint
from bisim_abstract.generators import grouped_mdp, random_mdp, sparse_mdp
from bisim_abstract.learning import Curve, QLearning, learning_curve, score_above_random
from bisim_abstract.linking import Undecided
from bisim_abstract.mdp import TabularMDP
from bisim_abstract.metric import MetricBounds, bisimulation_metric
from bisim_abstract.nearest import NearPair
from bisim_abstract.partition import CertifiedInterval, Profile
from bisim_abstract.planning import Values, evaluate_policy, value_iteration
from bisim_abstract.plots import (
    plot_curves,
    plot_dendrogram,
    plot_embedding,
    plot_frontier,
    plot_losses,
    plot_map,
    plot_profile,
    plot_widths,
)
from bisim_abstract.proposals import (
    propose_classes,
    propose_components,
    repair_labels,
    split_labels,
)
from bisim_abstract.ray_backend import RayBackend
from bisim_abstract.report import write_report
from bisim_abstract.retrieval import recall_miss, retrieve_neighbours, retrieve_pairs
from bisim_abstract.statemap import StateMap, state_map
from bisim_abstract.transport import TransportPlans, solve_transport
from bisim_abstract.value import ProvenValue, ValueBracket
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
    "BlockLevel",
    "BlockModel",
    "Certificate",
    "CertifiedInterval",
    "Curve",
    "EmbeddingQuality",
    "Estimate",
    "ExtractionError",
    "FileFormatError",
    "Frontier",
    "FrontierPoint",
    "InvalidArgumentError",
    "InvalidMDPError",
    "MemoryLimitError",
    "MetricBounds",
    "MissingDependency",
    "NearPair",
    "NotCertifiedError",
    "Profile",
    "ProvenValue",
    "QLearning",
    "RayBackend",
    "StateLimitError",
    "StateMap",
    "StochasticEnvError",
    "TabularMDP",
    "TransportPlans",
    "Undecided",
    "ValueBracket",
    "ValueFeatures",
    "ValueLoss",
    "Values",
    "Verdict",
    "Verification",
    "VerificationError",
    "Witness",
    "abstract_env",
    "aggregate",
    "bisimulation_classes",
    "bisimulation_metric",
    "build_blocks",
    "certify",
    "cluster_by_arm",
    "cluster_by_embedding",
    "cluster_by_metric",
    "cluster_by_rewards",
    "compare_abstractions",
    "compare_clusterings",
    "distortion",
    "estimate_mdp",
    "evaluate_embedding",
    "evaluate_policy",
    "grouped_mdp",
    "landmark_mds",
    "learning_curve",
    "lift_policy",
    "make_witness",
    "plot_curves",
    "plot_dendrogram",
    "plot_embedding",
    "plot_frontier",
    "plot_losses",
    "plot_map",
    "plot_profile",
    "plot_widths",
    "propose_classes",
    "propose_components",
    "prove_value",
    "random_mdp",
    "random_values",
    "read_bridge",
    "read_model",
    "recall_miss",
    "repair_labels",
    "retrieve_neighbours",
    "retrieve_pairs",
    "score_above_random",
    "single_build",
    "solve_transport",
    "sparse_mdp",
    "split_labels",
    "state_map",
    "value_bracket",
    "value_features",
    "value_iteration",
    "value_loss",
    "verify",
    "write_report",
]
