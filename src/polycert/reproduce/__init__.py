"""The paper's tables and figures from stored records, its printed figures beside ours."""

from polycert.reproduce.figures import FIGURES
from polycert.reproduce.page import NAMES, write
from polycert.reproduce.store import Record, Store
from polycert.reproduce.tables import TABLES

__all__ = ["FIGURES", "NAMES", "TABLES", "Record", "Store", "write"]
