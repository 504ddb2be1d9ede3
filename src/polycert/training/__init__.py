"""Training: recipes, schedules, and a loop that can be killed and resumed."""

from polycert.training.loop import Run, TrainingProgress, prepare, train
from polycert.training.recipe import Recipe, make_recipe
from polycert.training.recipe_files import library, read_recipe

__all__ = ["Recipe", "Run", "TrainingProgress", "library", "make_recipe", "prepare", "read_recipe", "train"]
