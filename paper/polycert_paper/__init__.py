"""The paper's tables and figures, made from stored records, with the printed figures beside ours."""

from polycert_paper.document import NAMES, write
from polycert_paper.figures import FIGURES
from polycert_paper.stored_records import Record, Store
from polycert_paper.tables import TABLES

__all__ = ["FIGURES", "NAMES", "TABLES", "Record", "Store", "write"]
