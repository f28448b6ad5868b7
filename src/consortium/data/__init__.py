"""Records for tasks: reading and splitting them, public sets, quality, statistics."""

from consortium.data.bundled import load_bundled
from consortium.data.fetch import cache_folder
from consortium.data.heart import load_heart
from consortium.data.intrusion import load_intrusion
from consortium.data.made_up import made_up_engines, made_up_hospitals
from consortium.data.partition import by_id, dirichlet, iid, quantity_skew, shards
from consortium.data.quality import Finding, Quality, QualityCode, QualityReport, check_quality
from consortium.data.read import read_csv, read_table
from consortium.data.statistics import Statistics, local_moments
from consortium.data.table import Table, from_arrays
from consortium.data.turbofan import Engine, Turbofan, load_turbofan, windows

__all__ = [
    "Engine",
    "Finding",
    "Quality",
    "QualityCode",
    "QualityReport",
    "Statistics",
    "Table",
    "Turbofan",
    "by_id",
    "cache_folder",
    "check_quality",
    "dirichlet",
    "from_arrays",
    "iid",
    "load_bundled",
    "load_heart",
    "load_intrusion",
    "load_turbofan",
    "local_moments",
    "made_up_engines",
    "made_up_hospitals",
    "quantity_skew",
    "read_csv",
    "read_table",
    "shards",
    "windows",
]
