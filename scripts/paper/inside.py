"""What the experiments use of the package beyond its public surface, in one place."""

from bisim_abstract._base.atomic import replacing
from bisim_abstract._base.labels import numbered
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._linkage.forests import spanning_forest
from bisim_abstract._propose.embedding import as_points
from bisim_abstract._propose.retrieval import uniform_pairs
from bisim_abstract._prove.covering import retrieve
from bisim_abstract._prove.making import make_certificate

__all__ = [
    "Arms",
    "BoolArray",
    "FloatArray",
    "IntArray",
    "as_points",
    "make_certificate",
    "numbered",
    "replacing",
    "retrieve",
    "spanning_forest",
    "uniform_pairs",
]
