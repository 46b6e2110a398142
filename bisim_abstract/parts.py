"""The parts that `certify` and its neighbours are made of, for those who combine them anew.

- **Models to try**: `random_mdp`, `sparse_mdp`, `grouped_mdp`; `read_bridge`.
- **Proposals**: `propose_classes`, `propose_components`, `split_labels`, `repair_labels`:
  partitions worth trying; `match_actions`: which actions of a block's states are most alike. They
  are never trusted.
- **Blocks**: `build_blocks` makes the `BlockModel` of a partition; a `BlockLevel` has bounds on it.
- **Features**: `value_features` and `make_witnesses`, functions whose differences are lower bounds
  on the metric.
- **Retrieval**: `landmark_mds`, `retrieve_pairs`, `retrieve_neighbours`, which pairs are worth a
  look; `distortion` and `recall_miss`, how good that choice is. `single_build` is the paper's
  algorithm over them.
- **Transport**: `solve_transport`, many small exact problems at once, with bounds on both sides.
- **Clusterings and values**: `cluster_by_arm`, `cluster_by_metric`, `cluster_by_rewards`,
  `cluster_by_embedding`, to compare with; `compare_clusterings`; `value_bracket`, what a partition
  proves by itself; `find_baseline` and `score_above_baseline`, the scale of the achievable return,
  with a `Baseline`.
- **Partitions**: `prove_partition` proves what agents get on clusters that no metric gives, as a
  `PartitionProof`, of which `AbstractedEnv` makes an environment.
- What a `ProvenValue` holds: `ProvenShare`, `SolverShare`, `LearnerShare`, `ConvergedShare`,
  `Episodes` with `EpisodeBounds`; and a certificate's `Goal`.
- **Two models**: `disjoint_union`, both side by side in one, a `ModelUnion`.
- What methods of results hand out: `CertifiedInterval`, `Profile`, `Undecided`, `NearPair`,
  `Correspondence`, `FrontierPoint`, `Estimate`, `Names` and `Variable`, `EmbeddingFit`,
  `EmbeddingQuality`, `MicoBounds`, `ModelDifference`.

Example:
    >>> from bisim_abstract.parts import build_blocks, grouped_mdp, propose_classes
    >>> mdp, groups = grouped_mdp(12, 3, noise=0.0, seed=0)
    >>> build_blocks(mdp, propose_classes(mdp)).n_blocks
    3
"""

from bisim_abstract._abstract.baseline import Baseline, find_baseline
from bisim_abstract._abstract.brackets import value_bracket
from bisim_abstract._abstract.episodes import EpisodeBounds, Episodes
from bisim_abstract._abstract.value import (
    ConvergedShare,
    LearnerShare,
    ProvenShare,
    SolverShare,
    ValueBracket,
)
from bisim_abstract._bounds.blocks import BlockLevel, BlockModel, build_blocks
from bisim_abstract._bounds.features import ValueFeatures, value_features
from bisim_abstract._bounds.spanning import Undecided
from bisim_abstract._bounds.tell_apart import make_witnesses
from bisim_abstract._bounds.witnesses import Witnesses
from bisim_abstract._certificate.correspondence import Correspondence
from bisim_abstract._certificate.frontier import FrontierPoint
from bisim_abstract._certificate.goal import Goal
from bisim_abstract._certificate.nearest import NearPair
from bisim_abstract._certificate.partition import PartitionProof, prove_partition
from bisim_abstract._compare.clusterings import (
    cluster_by_arm,
    cluster_by_embedding,
    cluster_by_metric,
    cluster_by_rewards,
)
from bisim_abstract._compare.difference import ModelDifference
from bisim_abstract._compare.embeddings import EmbeddingFit, EmbeddingQuality
from bisim_abstract._compare.learning import score_above_baseline
from bisim_abstract._compare.losses import compare_clusterings
from bisim_abstract._compare.union import ModelUnion, disjoint_union
from bisim_abstract._exact.mico import MicoBounds
from bisim_abstract._exact.transport import TransportPlans, solve_transport
from bisim_abstract._linkage.thresholds import CertifiedInterval, Profile
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._model.files import read_bridge
from bisim_abstract._model.generators import grouped_mdp, random_mdp, sparse_mdp
from bisim_abstract._model.names import Names, Variable
from bisim_abstract._propose.embedding import distortion, landmark_mds
from bisim_abstract._propose.partitions import (
    propose_classes,
    propose_components,
    repair_labels,
    split_labels,
)
from bisim_abstract._propose.renaming import match_actions
from bisim_abstract._propose.retrieval import recall_miss, retrieve_neighbours, retrieve_pairs
from bisim_abstract._prove.certify import single_build

__all__ = [
    "Baseline",
    "BlockLevel",
    "BlockModel",
    "CertifiedInterval",
    "ConvergedShare",
    "Correspondence",
    "EmbeddingFit",
    "EmbeddingQuality",
    "EpisodeBounds",
    "Episodes",
    "Estimate",
    "FrontierPoint",
    "Goal",
    "LearnerShare",
    "MicoBounds",
    "ModelDifference",
    "ModelUnion",
    "Names",
    "NearPair",
    "PartitionProof",
    "Profile",
    "ProvenShare",
    "SolverShare",
    "TransportPlans",
    "Undecided",
    "ValueBracket",
    "ValueFeatures",
    "Variable",
    "Witnesses",
    "build_blocks",
    "cluster_by_arm",
    "cluster_by_embedding",
    "cluster_by_metric",
    "cluster_by_rewards",
    "compare_clusterings",
    "disjoint_union",
    "distortion",
    "find_baseline",
    "grouped_mdp",
    "landmark_mds",
    "make_witnesses",
    "match_actions",
    "propose_classes",
    "propose_components",
    "prove_partition",
    "random_mdp",
    "read_bridge",
    "recall_miss",
    "repair_labels",
    "retrieve_neighbours",
    "retrieve_pairs",
    "score_above_baseline",
    "single_build",
    "solve_transport",
    "sparse_mdp",
    "split_labels",
    "value_bracket",
    "value_features",
]
